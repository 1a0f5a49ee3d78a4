//! `rooflet worker`

mod memory_budget;
pub(crate) mod render_template;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use tracing::warn;

use super::Failure;
use super::ui::address::address;
use super::ui::duration::duration;
use rooflet_api::wire::TerminationMessage;
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_base::quantity;
use rooflet_base::task::Tasks;
use rooflet_base::units::Bytes;
use rooflet_composition::anonymous::AllowAnonymous;
use rooflet_composition::tls_files::TlsFiles;
use rooflet_composition::{shutdown, traces};
use rooflet_inference_api::openai::origins::AllowedOrigins;
use rooflet_pki::CertificateMetrics;
use rooflet_worker as worker;
use rooflet_worker::{Listen, PrefixFiles, WorkerConfig};

/// Arguments of `rooflet worker`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("address").required(true).args(["listen", "socket"])))]
pub(crate) struct Args {
    /// Directory of the model: config.json, tokenizer.json, *.safetensors.
    #[arg(long, value_name = "DIR")]
    model: Utf8PathBuf,
    /// Served name: the `model` of requests. Default: the last component of the path of --model.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Listen on this TCP address.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    anonymous: AllowAnonymous,
    #[command(flatten)]
    tls: TlsFiles,
    /// Listen on this Unix socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<Utf8PathBuf>,
    /// Web origins that may send requests to this worker, such as `https://chat.example.com`; `*`
    /// for all. Pages of this machine (localhost) and of installed apps are always allowed. Clients
    /// other than browsers are not restricted.
    #[arg(long, value_name = "ORIGIN[,…]", env = "ROOFLET_ALLOWED_ORIGINS")]
    allowed_origins: Option<AllowedOrigins>,
    /// Maximum context of a request in tokens, prompt and answer together. Default: the model's
    /// maximum, at most 32768.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    context_tokens: Option<u64>,
    /// Maximum number of concurrent requests.
    #[arg(long, value_name = "N", default_value_t = rooflet_api::v1alpha1::DEFAULT_MAX_CONCURRENCY, value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_concurrency: u32,
    /// Maximum number of waiting requests. Further requests receive status 429 with `Retry-After`.
    /// Default: eight times the maximum number of concurrent requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    max_queued: Option<u32>,
    /// Number of draft tokens of prompt lookup: tokens that followed the same text earlier are
    /// verified in one step. This is faster for answers that repeat the prompt, and never changes
    /// the answer. It applies while a single request runs, and not to models with sliding windows
    /// or recurrent states. Default: off.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    prompt_lookup_tokens: Option<u32>,
    /// Time without requests after which the worker frees the memory of weights and cached prefixes, such as 5m. The
    /// next request waits until the model is loaded again. Requests of Ollama's API may set another time with
    /// `keep_alive`. Default: the model stays loaded, and `keep_alive` has no effect.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    keep_alive: Option<Duration>,
    /// Accept requests with their own `chat_template`. A separate process with limits of time, memory and
    /// length renders such a template. By default, these requests receive status 400.
    #[arg(long)]
    allow_request_chat_template: bool,
    /// Memory for weights, caches and intermediate results, such as 12Gi. Default: the memory that
    /// this machine allows for models.
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    memory_limit: Option<Bytes>,
    /// Bits per element of the KV cache, 8 or 4, instead of the model's own type (16 bits). More
    /// tokens fit and long contexts decode faster, at some loss of precision. Not for models with
    /// sliding windows or attention sinks.
    #[arg(long, value_name = "BITS", value_parser = clap::value_parser!(u32).range(4..=16))]
    kv_bits: Option<u32>,
    /// Maximum memory of the prefix cache within --memory-limit, such as 2Gi; 0 disables it. The
    /// cache uses only memory that running requests do not need. Default: the maximum memory of the
    /// running requests.
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    prefix_cache_memory: Option<Bytes>,
    /// Also store cached prefixes in this directory, so that they survive a restart. Each worker
    /// needs its own directory.
    #[arg(long, value_name = "DIR")]
    prefix_cache_dir: Option<Utf8PathBuf>,
    /// Maximum total size of the files in that directory.
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes, default_value = "16Gi", requires = "prefix_cache_dir")]
    prefix_cache_disk: Bytes,
    /// Time for in-flight requests to finish after SIGTERM, such as 30s.
    #[arg(long, value_name = "DURATION", default_value_t = 30, value_parser = super::grace_seconds)]
    grace_seconds: u64,
    /// File to which the worker writes its termination reason as JSON when it exits on its own.
    #[arg(long, value_name = "FILE", hide = true)]
    termination_message_path: Option<Utf8PathBuf>,
    /// Stop when standard input closes. The parent process holds the other end.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let tasks = Tasks::new();
    shutdown::on_signal(&tasks)?;
    if args.stop_with_stdin {
        shutdown::on_stdin_end(&tasks)?;
    }
    if let Some(problem) = rooflet_mlx::metallib::problem() {
        warn!(problem, "the engine may fail: wrong file of Metal kernels");
    }
    let listen = match (args.socket, args.listen) {
        (Some(path), _) => Listen::Unix(path),
        (None, Some(address)) => {
            args.anonymous
                .check("--listen", address, args.tls.transport())
                .map_err(|err| Failure::new(ExitStatus::Usage, err))?;
            Listen::Tcp(address)
        }
        (None, None) => unreachable!("the argument group requires one of both"),
    };
    let name = match args.name {
        Some(name) => name,
        None => directory_name(&args.model).map_err(|err| Failure::new(ExitStatus::Usage, err))?,
    };
    // Spans are recorded until the last request has ended, and exported afterwards.
    let traced = Tasks::new();
    let config = WorkerConfig {
        model: args.model,
        listen,
        tls: args
            .tls
            .load(&Clock::System, &CertificateMetrics::default())
            .map_err(|err| Failure::new(ExitStatus::Config, err))?,
        allowed_origins: args.allowed_origins.unwrap_or_default(),
        name,
        context_tokens: args.context_tokens,
        max_concurrency: usize::try_from(args.max_concurrency).expect("at most 1024"),
        max_queued: args
            .max_queued
            .map(|most| usize::try_from(most).expect("at most 10000")),
        prompt_lookup_tokens: args
            .prompt_lookup_tokens
            .map(|tokens| usize::try_from(tokens).expect("at most 64")),
        keep_alive: args.keep_alive,
        template_program: match args.allow_request_chat_template {
            true => Some(std::env::current_exe().context("determining the path of this program")?),
            false => None,
        },
        memory_limit: args.memory_limit,
        kv_bits: args.kv_bits,
        prefix_cache_memory: args.prefix_cache_memory,
        prefix_files: args.prefix_cache_dir.map(|dir| PrefixFiles {
            dir,
            limit: args.prefix_cache_disk,
        }),
        grace: Duration::from_secs(args.grace_seconds),
        clock: Clock::System,
        tracer: traces::start("rooflet-worker", traced.stop_token(), &traced),
    };
    let outcome = worker::run(config, tasks.stop_token()).await;
    traced.cancel();
    drop(traced.join(traces::LAST_EXPORT).await);
    outcome.map_err(|err| {
        if let Some(path) = &args.termination_message_path {
            write_termination_message(path, &err.termination_message());
        }
        Failure::new(err.exit_status(), err)
    })
}

/// Returns the last component of a path, also of `.` and `..`.
fn directory_name(model: &Utf8Path) -> anyhow::Result<String> {
    let last = model.file_name().map(str::to_owned);
    let resolved = || model.canonicalize_utf8().ok()?.file_name().map(str::to_owned);
    last.or_else(resolved).with_context(|| {
        format!("--model {model} is not the path of a directory; pass the served name with --name")
    })
}

/// Writes the termination message for the agent. A write error must not hide the message itself.
fn write_termination_message(path: &Utf8Path, message: &TerminationMessage) {
    let text = serde_json::to_string(message).expect("two strings always serialise");
    if let Err(err) = std::fs::write(path, text) {
        warn!(%path, error = %err, "failed to write termination message");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_name_is_that_of_the_directory() {
        let name = |path: &str| directory_name(Utf8Path::new(path)).ok();
        assert_eq!(name("models/guide/"), Some("guide".to_owned()));
        assert_eq!(name("."), Some("rooflet".to_owned()));
        assert_eq!(name("/"), None);
    }
}
