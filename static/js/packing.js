// A directory's files as a .tar.gz, packed in the browser: as `gpucloud job run --dir` does, the same files give the same bytes,
// so that they are uploaded once.
const BLOCK = 512;
const MOST_ENTRIES = 100_000; // as a node unpacks at most
const MOST_BYTES = 4 * 2 ** 30;
const encoder = new TextEncoder();

export class TooMuch extends Error {}

// The archive of these files; TooMuch if it has more bytes than may be uploaded, or more entries than a node unpacks.
export async function pack(files, mostBytes) {
  const entries = [...files].map((file) => ({ file, name: inside(file) })).filter(({ name }) => name && !name.split("/").includes(".git"));
  const size = entries.reduce((sum, { file }) => sum + file.size, 0);
  if (entries.length > MOST_ENTRIES || size > MOST_BYTES) throw new TooMuch();
  entries.sort((one, other) => (one.name < other.name ? -1 : 1));
  let packed = 0;
  const bounded = new TransformStream({
    transform(chunk, controller) {
      packed += chunk.byteLength;
      if (packed > mostBytes) controller.error(new TooMuch());
      else controller.enqueue(chunk);
    },
  });
  const stream = tar(entries).pipeThrough(new CompressionStream("gzip")).pipeThrough(bounded);
  return { archive: await new Response(stream).blob(), count: entries.length };
}

// Its path below the directory that was chosen.
function inside(file) {
  return file.webkitRelativePath.split("/").slice(1).join("/");
}

function tar(entries) {
  const parts = write(entries);
  return new ReadableStream({
    async pull(controller) {
      const { value, done } = await parts.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
  });
}

async function* write(entries) {
  for (const { file, name } of entries) {
    // A script is a program, which the browser does not tell.
    const isProgram = (await file.slice(0, 2).text()) === "#!";
    const path = encoder.encode(name);
    if (path.length > 100) {
      const record = pax(name);
      yield header("pax", record.length, "x", 0o644, 0);
      yield padded(record);
    }
    yield header(path.length > 100 ? "long" : name, file.size, "0", isProgram ? 0o755 : 0o644, Math.floor(file.lastModified / 1000));
    for await (const chunk of chunks(file)) yield chunk;
    const rest = file.size % BLOCK;
    if (rest) yield new Uint8Array(BLOCK - rest);
  }
  yield new Uint8Array(2 * BLOCK);
}

// Not every browser iterates streams.
async function* chunks(file) {
  const reader = file.stream().getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    yield value;
  }
}

// POSIX ustar: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html
function header(name, size, type, mode, modified) {
  const block = new Uint8Array(BLOCK);
  const put = (text, at) => block.set(encoder.encode(text), at);
  const octal = (value, length) => value.toString(8).padStart(length - 1, "0") + "\0";
  put(name, 0);
  put(octal(mode, 8) + octal(0, 8) + octal(0, 8), 100);
  put(octal(size, 12) + octal(modified, 12), 124);
  put(" ".repeat(8) + type, 148);
  put("ustar\0" + "00", 257);
  put(octal(block.reduce((sum, byte) => sum + byte, 0), 7) + " ", 148);
  return block;
}

// The extended header of a long path: its length counts itself.
function pax(name) {
  const rest = encoder.encode(` path=${name}\n`).length;
  let length = rest + 1;
  while (String(length).length + rest !== length) length = String(length).length + rest;
  return encoder.encode(`${length} path=${name}\n`);
}

function padded(bytes) {
  const block = new Uint8Array(Math.ceil(bytes.length / BLOCK) * BLOCK);
  block.set(bytes);
  return block;
}
