// The latest requests: where each went, and why.

import { empty } from "./dom.js";

export class Decisions {
  constructor(host) {
    this.host = host;
  }

  show(told) {
    if (told === null) empty(this.host, "This proxy keeps no recent decisions.");
  }
}
