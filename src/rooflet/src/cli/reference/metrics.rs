//! Page of Prometheus metrics, from the registries of all services.

use rooflet_base::metrics::{Description, Registry};
use rooflet_pki::CertificateMetrics;
use rooflet_store::StoreMetrics;

use super::markdown::{NOTICE, table};

const INTRO: &str = "\
# Metrics

Each process exposes Prometheus metrics at `/metrics`. Times are in seconds, sizes in bytes.
Counters (`_total`) restart at zero with the process. Labels have few values, which rooflet defines:
never a prompt, a path or a name from a client.

| process | address | scope |
|---|---|---|
| gateway | `GATEWAY/metrics` | its own process |
| API server, controller | `/metrics` of the API server, with a token of the ClusterRole `rooflet:monitoring` ([monitoring.md](../monitoring.md)), or the address of `--metrics-listen` | all roles of the process but the gateway |
| agent | `AGENT/metrics` (`kubectl get mac NAME -o jsonpath={.status.endpoint}`) | the node |
| worker | `AGENT/replicas/NAMESPACE/NAME/proxy/metrics`, or its own port (`rooflet worker`) | the engine of one replica |

For OpenTelemetry, see [tracing.md](../tracing.md).
";

const GATEWAY: &str = "\
The code `5xx` includes streams that failed after the response's head. The code `cancelled` counts
requests whose clients disconnected before the end. `reason` is one of `QueueFull`, `TooLong`,
`NotReady`, `Expired` and `NoRoom` ([gateway.md](../gateway.md)). Errors of a model also have the reasons
`Cancelled` (the client disconnected), `InvalidRequest` and `ServerError` (responses 4xx and 5xx),
`StreamInterrupted` (the replica failed during its response), and the reasons of denied API keys: `MissingKey`,
`UnknownKey`, `ExpiredKey`, `ModelNotPermitted`, `RequestsPerMinute`, `TokensPerMinute`, `TokensPerDay` and
`ConcurrentRequests`.
";

const WORKER: &str = "\
Names with `vllm:` repeat figures under vLLM's names, for the Gateway API inference extension, llm-d
and existing dashboards.

| `part` of `rooflet_worker_step_seconds_total` | activity of the engine thread |
|---|---|
| `schedule` | plan the step |
| `build` | describe a forward pass; includes waiting if the device lags far behind |
| `compute` | wait for tokens; includes sampling |
| `prefill` | prefill |
| `detokenize` | tokens to text |
| `deliver` | send tokens to requests |
| `rest` | pauses of a paced worker ([node-conditions.md](../node-conditions.md#objectives-beside-best-effort)) |
";

pub(super) fn page() -> anyhow::Result<String> {
    let mut page = format!("{NOTICE}{INTRO}");
    let mut section = |title: &str,
                       register: &dyn Fn(&Registry) -> rooflet_base::metrics::Result<()>,
                       text: &str|
     -> anyhow::Result<()> {
        let registry = Registry::new();
        register(&registry)?;
        let rows: Vec<_> = registry.descriptions().into_iter().map(row).collect();
        let rows = table(["metric", "type", "meaning"], &rows);
        page.push_str(&format!("\n## {title}\n\n{rows}\n{text}"));
        Ok(())
    };
    section("Gateway", &rooflet_gateway::register_metrics, GATEWAY)?;
    section("Worker", &rooflet_worker::register_metrics, WORKER)?;
    section("Agent", &rooflet_agent::register_metrics, "")?;
    section("Controller", &rooflet_controller::register_metrics, "")?;
    section("API server", &rooflet_apiserver::register_metrics, "")?;
    section(
        "Store",
        &|registry| StoreMetrics::register(registry).map(drop),
        "",
    )?;
    section(
        "Certificates",
        &|registry| CertificateMetrics::default().register(registry),
        "",
    )?;
    Ok(page)
}

fn row(metric: Description) -> [String; 3] {
    let Description {
        name,
        kind,
        labels,
        help,
    } = metric;
    let labels = match labels.as_slice() {
        [] => String::new(),
        labels => format!("{{{}}}", labels.join(",")),
    };
    [format!("`{name}{labels}`"), kind.to_owned(), help]
}
