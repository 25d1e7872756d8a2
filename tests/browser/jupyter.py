"""A page of Jupyter Server in the browser: kernels by its REST API, cells by a websocket of the page's own."""

from playwright.sync_api import Page

# Prints what the driver says of the GPU's memory: five lines a second, for as long as the cell runs.
WATCH_MEMORY = """
import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
for turn in range(3000):
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
    print(f"pid {os.getpid()} turn {turn} sees {total.value >> 20} MiB", flush=True)
    time.sleep(0.2)
"""
# What the cell prints is kept on the page, whatever else the test does meanwhile.
START = """async code => {
    const made = await fetch('/api/kernels', {method: 'POST', body: '{}', headers: {'X-XSRFToken': xsrf()}});
    const {id} = await made.json();
    const socket = new WebSocket(`ws://${location.host}/api/kernels/${id}/channels`);
    await new Promise((opened, failed) => { socket.onopen = opened; socket.onerror = failed; });
    window.cell = {socket, id, text: '', problem: ''};
    socket.onmessage = ({data}) => {
        const {msg_type: kind, content} = JSON.parse(data);
        if (kind === 'stream') window.cell.text += content.text;
        if (kind === 'error') window.cell.problem += content.evalue;
    };
    socket.onclose = ({code}) => { window.cell.problem += `closed ${code}`; };
    const header = {msg_id: 'one', msg_type: 'execute_request', session: 's', username: 'u', version: '5.3'};
    const content = {code, silent: false, store_history: false, user_expressions: {}, allow_stdin: false};
    socket.send(JSON.stringify({header, parent_header: {}, metadata: {}, content, channel: 'shell'}));
    function xsrf() { return document.cookie.match(/_xsrf=([^;]*)/)?.[1] ?? ''; }
}"""


def start_cell(page: Page, code: str) -> None:
    """Start a kernel and have it run the code, from the page that is open."""
    page.evaluate(START, code)


def printed(page: Page) -> str:
    """Return what the cell has printed; fail if it has an error or lost its kernel."""
    problem, text = page.evaluate("[window.cell.problem, window.cell.text]")
    assert not problem, problem
    return str(text)


def last_line(page: Page) -> str:
    """Return the last whole line that the cell has printed."""
    lines = printed(page).split("\n")[:-1]
    return lines[-1] if lines else ""


def leave(page: Page) -> None:
    """Interrupt the cell, and close its websocket as a closed page does."""
    page.evaluate("""async () => {
        window.cell.socket.onclose = null;
        const xsrf = document.cookie.match(/_xsrf=([^;]*)/)?.[1] ?? '';
        await fetch(`/api/kernels/${window.cell.id}/interrupt`, {method: 'POST', headers: {'X-XSRFToken': xsrf}});
        window.cell.socket.close(); }""")


def facts(text: str) -> dict[str, int]:
    """Return the numbers of a line of WATCH_MEMORY."""
    words = text.split()
    return {"pid": int(words[1]), "turn": int(words[3]), "mib": int(words[5])}
