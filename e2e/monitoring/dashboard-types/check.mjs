// Checks the dashboards of manifests/monitoring against the types of Grafana's schema. The compiler
// checks object literals exactly, so that an unknown field is an error. The script writes the JSON as
// literals into generated/, and runs the compiler.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const dashboards = join(here, "../../../manifests/monitoring/dashboards");
const generated = join(here, "generated");

/** Types of the options of a panel and of the custom part of its fields, by the panel's type. */
const PANELS = {
  timeseries: ["timeseries.Options", "timeseries.FieldConfig"],
  stat: ["stat.Options", "Record<string, never>"],
  table: ["table.Options", "Partial<common.TableFieldOptions>"],
};

const HEAD = `import type * as cog from "@grafana/grafana-foundation-sdk/cog";
import type * as common from "@grafana/grafana-foundation-sdk/common";
import type * as dashboard from "@grafana/grafana-foundation-sdk/dashboard";
import type * as prometheus from "@grafana/grafana-foundation-sdk/prometheus";
import type * as stat from "@grafana/grafana-foundation-sdk/stat";
import type * as table from "@grafana/grafana-foundation-sdk/table";
import type * as timeseries from "@grafana/grafana-foundation-sdk/timeseries";

/** Type of JSON: enums become their values, and the methods of queries are left out. */
type Json<T> = unknown extends T ? T
  : T extends string ? \`\${T}\`
  : T extends number ? (\`\${T}\` extends \`\${infer N extends number}\` ? N : number)
  : T extends readonly (infer E)[] ? Json<E>[]
  : T extends object ? { [K in keyof T as K extends "_implementsDataqueryVariant" ? never : K]: Json<T[K]> }
  : T;
export type { cog };
`;

function source(board) {
  const checks = [];
  const check = (type, value) =>
    checks.push(`const check${checks.length}: Json<${type}> = ${JSON.stringify(value, null, 2)};`);
  const { panels, templating, ...rest } = board;
  check("dashboard.Dashboard", { ...rest, templating: { list: [] } });
  for (const variable of templating.list) {
    check("dashboard.VariableModel", variable);
  }
  for (const { panels: inner, ...panel } of panels) {
    if (panel.type === "row") {
      check("dashboard.RowPanel", { ...panel, panels: inner });
      continue;
    }
    const types = PANELS[panel.type];
    if (!types) {
      throw new Error(`${board.title}: panel type ${panel.type} has no types in check.mjs`);
    }
    const { targets, options, ...head } = panel;
    check("dashboard.Panel", head);
    check(types[0], options);
    check(types[1], panel.fieldConfig.defaults.custom);
    targets.forEach((target) => check("prometheus.Dataquery", target));
  }
  const used = checks.map((_, at) => `check${at}`).join(", ");
  return { text: `${HEAD}\n${checks.join("\n")}\nexport { ${used} };\n`, count: checks.length };
}

rmSync(generated, { recursive: true, force: true });
mkdirSync(generated);
let total = 0;
for (const name of readdirSync(dashboards)) {
  const { text, count } = source(JSON.parse(readFileSync(join(dashboards, name), "utf8")));
  writeFileSync(join(generated, name.replace(/\.json$/, ".ts")), text);
  total += count;
}
execFileSync("npx", ["tsc", "--project", here], { cwd: here, stdio: "inherit" });
console.log(`${total} values have the types of Grafana's schema`);
