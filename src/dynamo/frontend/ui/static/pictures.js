// Pictures that are added to a message: chosen, pasted or dropped.

import { $, el, iconButton, toast } from "./dom.js";

const KINDS = /^image\/(png|jpeg|webp|gif)$/;
/** Longer sides are scaled down to this: models see no more, and requests stay small. */
const SIDE = 2048;
const KEPT_AS_IT_IS = 1 << 20;

export class Pictures {
  constructor({ onChange }) {
    this.onChange = onChange;
    this.urls = [];
    this.allowed = false;
    $("attach").addEventListener("click", () => $("files").click());
    $("files").addEventListener("change", () => {
      this.add([...$("files").files]);
      $("files").value = "";
    });
    $("prompt").addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files].filter((file) => KINDS.test(file.type));
      if (!files.length) return;
      event.preventDefault();
      this.add(files);
    });
    addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
    addEventListener("drop", (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  /** Whether the chosen models take pictures. */
  allow(allowed) {
    this.allowed = allowed;
    $("attach").hidden = !allowed;
  }

  async add(files) {
    if (!this.allowed) return toast("This model takes no pictures.");
    for (const file of files) {
      if (!KINDS.test(file.type)) {
        toast(`${file.name}: only PNG, JPEG, WebP and GIF`);
        continue;
      }
      try {
        this.urls.push(await dataUrl(file));
      } catch {
        toast(`${file.name} cannot be read as a picture`);
      }
    }
    this.render();
  }

  take() {
    const { urls } = this;
    this.urls = [];
    this.render();
    return urls;
  }

  render() {
    $("attachments").replaceChildren(...this.urls.map((url, index) => el("span", { class: "picture" },
      el("img", { src: url, alt: `Picture ${index + 1}` }),
      iconButton("close", `Remove picture ${index + 1}`, () => {
        this.urls.splice(index, 1);
        this.render();
        $("prompt").focus();
      }))));
    $("attachments").hidden = !this.urls.length;
    this.onChange();
  }
}

async function dataUrl(file) {
  const bitmap = await createImageBitmap(file);
  const scale = SIDE / Math.max(bitmap.width, bitmap.height);
  if (scale >= 1 && file.size <= KEPT_AS_IT_IS) return read(file);
  const canvas = new OffscreenCanvas(Math.round(bitmap.width * Math.min(scale, 1)), Math.round(bitmap.height * Math.min(scale, 1)));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return read(await canvas.convertToBlob({ type: file.type === "image/png" ? "image/png" : "image/jpeg", quality: 0.9 }));
}

function read(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
