"""Programs of `benchmarks.lending`, as text: what borrows, what trains meanwhile, and what owns."""

BORROWER = """
import sys, time, torch
torch.backends.cuda.matmul.allow_tf32 = False
gib = float(sys.argv[1])
blocks, n = [], int(min(gib, 1) * (1 << 30)) // 4
begin = time.monotonic()
for i in range(max(1, int(gib))):
    blocks.append(torch.empty(n, dtype=torch.int32, device="cuda"))
part = 1 << 22
def words(i, at):
    return torch.arange(at, at + part, dtype=torch.int32, device="cuda") * (2 * i + 1)
def count_wrong():
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for i, block in enumerate(blocks):
        for at in range(0, n, part):
            wrong += (block[at : at + part] != words(i, at)).sum()
    return int(wrong)
for i, block in enumerate(blocks):
    for at in range(0, n, part):
        block[at : at + part] = words(i, at)
assert count_wrong() == 0
print("took", time.monotonic() - begin, flush=True)
a = torch.randn(1024, 1024, device="cuda")
import os; os.set_blocking(0, False)
steps, slowest, last = 0, 0.0, time.monotonic()
while True:
    (a @ a).sum(); steps += 1
    if steps % 20 == 0:
        torch.cuda.synchronize()
        now = time.monotonic(); slowest = max(slowest, now - last); last = now
    if steps % 200 == 0:
        line = sys.stdin.readline()
        if line.startswith("check"):
            print("wrong", count_wrong(), "slowest", slowest, flush=True)
            slowest, last = 0.0, time.monotonic()
        if line.startswith("end"):
            break
"""

TRAINING = """
import sys, time, torch
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
steps, gib = int(sys.argv[1]), float(sys.argv[2])
layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
more = [torch.zeros(1 << 28, dtype=torch.int32, device="cuda") for _ in range(int(gib))]
data = torch.randn(16, 16, 256, 1024, generator=torch.Generator().manual_seed(3)).cuda()
for step in range(3):
    model(data[0]).square().mean().backward(); optimizer.zero_grad()
torch.cuda.synchronize(); print("ready", flush=True); sys.stdin.readline()
begin = time.monotonic(); times = []
for step in range(steps):
    at = time.monotonic()
    loss = (model(data[step % 16]) - data[(step + 1) % 16]).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    print("loss", loss.item().hex(), flush=True); times.append(time.monotonic() - at)
for m in more: assert int(m.sum()) == 0
times.sort()
print("seconds", time.monotonic() - begin, times[len(times) // 2], times[-1], flush=True)
"""

OWNER = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, device, at = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
error = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
print("context", error, flush=True)
assert cuda.cuCtxSetCurrent(context) == 0
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print("free", free.value, flush=True)
for line in sys.stdin:
    verb, _, size = line.partition(" ")
    begin = time.monotonic()
    if verb == "take":
        error = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(size)))
    else:
        error = cuda.cuMemFree_v2(at)
    print("took", time.monotonic() - begin, error, flush=True)
"""
