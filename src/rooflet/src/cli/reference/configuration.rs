//! Page of environment variables, labels, annotations and files.

use std::collections::BTreeMap;

use clap::{Command, CommandFactory as _};

use super::markdown::{NOTICE, codes, table};
use crate::cli::Cli;
use rooflet_api::meta::KEYS;

const INTRO: &str = "\
# Configuration

rooflet has no configuration file. Objects of the Kubernetes API configure what the fleet does
([kinds.md](kinds.md)); flags ([command-line.md](command-line.md)) and environment variables
configure processes. A flag takes precedence over its variable.
";

/// Variables that are not the variable of a flag.
const VARIABLES: [(&str, &str); 7] = [
    (
        "ROOFLET_LOG",
        "log filter, such as `info`, `debug` or `rooflet_agent=debug` (default `info`)",
    ),
    ("NO_COLOR", "any value: no colours in log lines and in `top`"),
    (
        "HF_ENDPOINT",
        "hub for `hf://` models (default `https://huggingface.co`; [hub.md](../hub.md))",
    ),
    (
        "HF_TOKEN",
        "token of the hub, of `fit`, `plan`, `server` and `agent`",
    ),
    (
        "HTTPS_PROXY, HTTP_PROXY, NO_PROXY",
        "proxies, see below; lower case works, too",
    ),
    ("KUBECONFIG", "kubeconfig, see below"),
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "collector of traces and metrics, and further `OTEL_*` variables ([tracing.md](../tracing.md))",
    ),
];

const RULES: &str = "\
- **Empty variables** count as unset. Exception: an empty variable for a data directory is an error
  of the verbs that use the directory.
- **Proxies** apply to hubs, collectors and servers of `bench`. rooflet connects to loopback, agents
  and the gateway of `rooflet up` directly. It connects to API servers only directly: if a proxy is
  set for one, rooflet exits with an error unless `NO_PROXY` contains the server, as kubectl
  interprets it.
- **`KUBECONFIG`** applies to `server` without the role `apiserver`, and to client verbs (`logs`,
  `rollout`, `drain`, `plan --current`, …). Their defaults are `~/.kube/config`, then
  `~/.rooflet/kubeconfig` (`rooflet up`), then `~/.rooflet/server/kubeconfig` (`rooflet server`).
  `agent` uses `--kubeconfig` only.

## Files

| path | content |
|---|---|
| `DATA_DIR/kubeconfig` | administrator's kubeconfig of `rooflet up` |
| `DATA_DIR/server` | store, keys and kubeconfig of the control plane |
| `DATA_DIR/agent` | worker records, sockets and logs, the node's credentials, the last measurement |
| `DATA_DIR/agent/models` | downloaded models |
| `DATA_DIR/agent/kv` | cached prefixes |

`DATA_DIR` is `~/.rooflet` by default. `rooflet server` and `rooflet agent` have separate
directories: `--data-dir` and `--state-dir`.
";

pub(super) fn page() -> String {
    let mut of_flags = BTreeMap::new();
    collect(&Cli::command(), "", &mut of_flags);
    let flags = of_flags.into_iter().map(|(name, Variable { flags, help })| {
        [
            format!("`{name}`"),
            codes(&flags),
            first_sentence(&help).to_owned(),
        ]
    });
    let others = VARIABLES.map(|(names, meaning)| {
        let names: Vec<_> = names.split(", ").collect();
        [codes(&names), String::new(), meaning.to_owned()]
    });
    let variables: Vec<_> = flags.chain(others).collect();
    let variables = table(["variable", "flag", "meaning"], &variables);
    let keys = KEYS.map(|key| {
        [
            format!("`{}`", key.name),
            key.on.to_owned(),
            key.set_by.to_owned(),
            key.meaning.to_owned(),
        ]
    });
    let keys = table(["key", "where", "set by", "meaning"], &keys);
    format!(
        "{NOTICE}{INTRO}\n## Environment variables\n\n{variables}\n{RULES}\n## Labels and annotations\n\n{keys}"
    )
}

/// Returns the first sentence of a help text. The page of the command line has the complete text.
fn first_sentence(help: &str) -> &str {
    help.split(". ").next().unwrap_or_default().trim_end_matches('.')
}

/// Variable with the flags that it sets.
struct Variable {
    flags: Vec<String>,
    help: String,
}

fn collect(command: &Command, path: &str, found: &mut BTreeMap<String, Variable>) {
    let visible = !command.is_hide_set();
    for arg in command.get_arguments().filter(|_| visible) {
        let (Some(variable), Some(long)) = (arg.get_env(), arg.get_long()) else {
            continue;
        };
        let flag = format!("{path} --{long}").trim_start().to_owned();
        let entry = found
            .entry(variable.to_string_lossy().into_owned())
            .or_insert_with(|| Variable {
                flags: Vec::new(),
                help: arg.get_help().map(ToString::to_string).unwrap_or_default(),
            });
        entry.flags.push(flag);
    }
    for verb in command.get_subcommands() {
        let path = format!("{path} {}", verb.get_name()).trim_start().to_owned();
        collect(verb, &path, found);
    }
}
