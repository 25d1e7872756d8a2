// The files of a new job: packed where a directory is chosen, uploaded in pieces to the tenant when the form is sent. The form
// then posts the uid alone. An upload that broke off goes on where it stopped, also after a page of errors.
import { TooMuch, pack } from "./packing.js";
import { say } from "./words.js";

const PIECE_BYTES = 512 << 10;
const TRIES = 5;
const RETRY_MS = 1000;

class Upload {
  constructor(panel) {
    this.panel = panel;
    this.form = panel.closest("form");
    [this.directory, this.archive] = panel.querySelectorAll("input[type=file]");
    this.uid = this.form.elements.uploaded;
    this.status = panel.querySelector("[role=status]");
    this.bar = panel.querySelector("progress");
    panel.hidden = false;
    for (const field of [this.archive, this.directory]) field.addEventListener("change", () => this.choose(field));
    panel.querySelector("[data-forgets]").addEventListener("click", () => this.forget());
    // A tenant's files are its own.
    this.form.elements.tenant.addEventListener("change", () => { this.uid.value = ""; });
    this.form.addEventListener("submit", (event) => this.submit(event));
    if (this.uid.value) this.tell("upload_kept");
  }

  get chosen() {
    return this.archive.files.length > 0 || this.directory.files.length > 0;
  }

  choose(field) {
    const other = field === this.archive ? this.directory : this.archive;
    if (field.files.length) other.value = "";
    this.uid.value = "";
    this.tell();
  }

  forget() {
    this.archive.value = this.directory.value = this.uid.value = "";
    this.tell();
  }

  submit(event) {
    if (this.uid.value || !this.chosen) return;
    event.preventDefault();
    if (!this.busy) this.send(event.submitter);
  }

  async send(submitter) {
    this.busy = true;
    try {
      this.uid.value = await this.upload();
      this.form.requestSubmit(submitter);
    } catch (error) {
      this.bar.hidden = true;
      this.status.setAttribute("role", "alert");
      this.status.textContent = error instanceof TooMuch ? say("upload_much", this.panel.dataset.mostMib) : error.message;
    } finally {
      this.busy = false;
    }
  }

  async upload() {
    const tenant = this.form.elements.tenant.value;
    if (!tenant) throw new Error(say("upload_tenant"));
    if (!globalThis.crypto?.subtle) throw new Error(say("upload_insecure"));
    const archive = await this.pack();
    const sha256 = hexadecimal(await crypto.subtle.digest("SHA-256", await archive.arrayBuffer()));
    let files = await this.call("/api/v1/job-files/", { tenant, sha256, size: archive.size });
    while (!files.complete) {
      this.show(files.stored_bytes / archive.size);
      const offset = files.stored_bytes;
      const content = await base64(archive.slice(offset, offset + PIECE_BYTES));
      files = await this.call(`/api/v1/job-files/${files.uid}/pieces/`, { offset, content });
      if (files.reason) throw new Error(say("upload_refused", files.reason));
    }
    this.show(1);
    return files.uid;
  }

  async pack() {
    const mostBytes = this.panel.dataset.mostMib * 2 ** 20;
    if (this.archive.files.length) {
      if (this.archive.files[0].size > mostBytes) throw new TooMuch();
      return this.archive.files[0];
    }
    this.tell("upload_packing");
    const { archive, count } = await pack(this.directory.files, mostBytes);
    if (!count) throw new Error(say("upload_empty"));
    return archive;
  }

  // One request by the page's session; a server that is away for a moment is asked again.
  async call(path, body) {
    for (let tries = 1; ; tries += 1) {
      try {
        const headers = { "Content-Type": "application/json", "X-CSRFToken": this.form.elements.csrfmiddlewaretoken.value };
        const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
        if (answer.status < 500 || tries >= TRIES) return await read(answer);
      } catch (error) {
        if (!(error instanceof TypeError) || tries >= TRIES) throw error instanceof TypeError ? new Error(say("unsent")) : error;
      }
      await new Promise((resume) => setTimeout(resume, tries * RETRY_MS));
    }
  }

  show(part) {
    this.bar.hidden = false;
    this.bar.value = part;
    // A screen reader hears quarters.
    const quarter = Math.floor(4 * part) * 25;
    const text = say("upload_at", quarter);
    if (this.status.textContent !== text) this.tell("upload_at", quarter);
  }

  tell(...words) {
    this.status.setAttribute("role", "status");
    this.status.textContent = words.length ? say(...words) : "";
    this.panel.querySelector("[data-forgets]").hidden = !this.uid.value && !this.chosen;
  }
}

async function read(answer) {
  const said = await answer.json().catch(() => ({}));
  if (answer.ok) return said;
  const errors = Object.values(said.errors ?? {}).flat().map((one) => one.detail ?? one);
  throw new Error([said.detail ?? say("failed", answer.status), ...errors].join(" "));
}

function hexadecimal(buffer) {
  return [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base64(blob) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(blob);
  });
}

new Upload(document.getElementById("upload"));
