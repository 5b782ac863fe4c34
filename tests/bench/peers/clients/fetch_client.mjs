// One connection of Node's fetch: `fetch_client.mjs URL BODIES BODY_BYTES SECONDS RESPONSES`, as python_client.py does it.
import { readFileSync, writeFileSync } from "node:fs";

const [url, path, bodyBytes, seconds, kept] = process.argv.slice(2);
const content = readFileSync(path), size = Number(bodyBytes), bodies = [];
for (let start = 0; start < content.length; start += size) bodies.push(content.subarray(start, start + size));
let number = 0;

async function ask() {
  const body = bodies[number++ % bodies.length];
  const response = await fetch(url, { method: "POST", body, headers: { "content-type": "application/octet-stream" } });
  const answer = await response.arrayBuffer();
  if (response.status !== 200) throw new Error(`${response.status}`);
  return Buffer.from(answer);
}

const first = [];
for (let n = 0; n < 8; n++) first.push(await ask());
writeFileSync(kept, Buffer.concat(first));
let count = 0, spent = 0;
const start = performance.now();
while ((spent = (performance.now() - start) / 1000) < Number(seconds)) {
  await ask();
  count++;
}
console.log(count / spent);
