//! `rooflet key`: API keys of clients of the gateway.

mod usage;

use std::time::Duration;

use anyhow::{Context, anyhow};
use camino::Utf8PathBuf;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};

use crate::cli::ui::duration::positive_duration;
use crate::cli::ui::output::Output;
use crate::cli::{Failure, objects, ui};
use rooflet_api::v1alpha1::{ApiKey, ApiKeySpec};
use rooflet_base::clock::Clock;
use rooflet_client::{ApiError, FIELD_MANAGER};
use rooflet_pki::ApiKeySecret;

/// Arguments of `rooflet key`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// Namespace. Default: the namespace of the kubeconfig's context.
    #[arg(long, short, global = true)]
    namespace: Option<String>,
    /// Kubeconfig of the API server. Default: the kubeconfig of kubectl, otherwise that of
    /// `rooflet up` or `rooflet server`.
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<Utf8PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a key for models of the namespace, and print its secret. Only a hash of the secret is
    /// stored, so it cannot be shown again.
    Create(CreateArgs),
    /// List the keys of the namespace with their limits and their use of today.
    List,
    /// Print the use of keys by day and model, for billing. Gateways report it every 10 s.
    Usage(usage::Args),
    /// Delete keys. Requests in progress end normally; new ones are rejected within a second.
    Delete {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Arguments of `rooflet key create`.
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Name of the key.
    name: String,
    /// Served names of the models that the key permits. Default: all models of the namespace.
    #[arg(long, value_name = "MODEL[,…]", value_delimiter = ',')]
    models: Vec<String>,
    /// Maximum requests per minute.
    #[arg(long, value_name = "N", value_parser = count)]
    requests_per_minute: Option<u64>,
    /// Maximum tokens of prompts and responses per minute, such as 60k.
    #[arg(long, value_name = "N", value_parser = count)]
    tokens_per_minute: Option<u64>,
    /// Maximum tokens of prompts and responses per day (UTC), such as 2M.
    #[arg(long, value_name = "N", value_parser = count)]
    tokens_per_day: Option<u64>,
    /// Maximum requests in progress.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    concurrent_requests: Option<u32>,
    /// Lifetime of the key, such as 12h or 90d. Default: no end.
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    expires_in: Option<Duration>,
    /// `table` prints the secret alone, `json` and `yaml` the object and the secret.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Parses a number with the suffix k, M or G.
fn count(text: &str) -> Result<u64, &'static str> {
    const WRONG: &str = "must be a number above 0, such as 500, 60k or 2M";
    let (number, scale) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = number.parse().ok().filter(|_| is_number).ok_or(WRONG)?;
    let count = number * scale;
    match (1.0..=1e12).contains(&count) && count.fract() == 0.0 {
        true => Ok(count as u64),
        false => Err(WRONG),
    }
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = objects::client(args.kubeconfig).await?;
    let namespace = objects::namespace(args.namespace, &client);
    let keys: Api<ApiKey> = Api::namespaced(client, &namespace);
    match args.verb {
        Verb::Create(args) => create(&keys, &namespace, args).await,
        Verb::List => list(&keys, &namespace).await,
        Verb::Usage(args) => usage::run(&keys, args).await,
        Verb::Delete { names } => {
            for name in names {
                delete(&keys, &name).await?;
            }
            Ok(())
        }
    }
}

/// Created key, for `-o json` and `-o yaml`.
#[derive(serde::Serialize)]
struct Created<'a> {
    secret: &'a str,
    key: &'a ApiKey,
}

/// Adds the remedy if the name of a new key is in use.
fn unused_name(err: ApiError, namespace: &str, name: &str) -> anyhow::Error {
    let is_in_use = matches!(err, ApiError::AlreadyExists(_));
    let err = anyhow::Error::from(err);
    match is_in_use {
        true => err.context(format!(
            "choose another name, or delete the key with `rooflet key delete {name} -n {namespace}`"
        )),
        false => err,
    }
}

async fn create(keys: &Api<ApiKey>, namespace: &str, args: CreateArgs) -> Result<(), Failure> {
    let secret = ApiKeySecret::generate().context("generating random numbers")?;
    let output = args.output;
    let key = key(args, &secret, Clock::System.now())?;
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let name = key.name_any();
    let key = keys
        .create(&params, &key)
        .await
        .map_err(|err| unused_name(ApiError::from(err), namespace, &name))?;
    let created = Created {
        secret: secret.reveal(),
        key: &key,
    };
    output.print(&created, || Ok(format!("{}\n", secret.reveal())))?;
    if matches!(output, Output::Table) {
        ui::progress(&format!(
            "API key {namespace}/{} created; its secret is printed once and cannot be shown again",
            key.name_any()
        ));
    }
    Ok(())
}

fn key(args: CreateArgs, secret: &ApiKeySecret, now: Timestamp) -> anyhow::Result<ApiKey> {
    let end = |lifetime: Duration| now.checked_add(lifetime).context("--expires-in is too long");
    let requests = args.requests_per_minute.map(u32::try_from).transpose();
    let spec = ApiKeySpec {
        secret_hash: secret.hash(),
        secret_hint: Some(secret.hint().to_owned()),
        models: args.models,
        requests_per_minute: requests.context("--requests-per-minute is larger than 4 billion")?,
        tokens_per_minute: args.tokens_per_minute,
        tokens_per_day: args.tokens_per_day,
        concurrent_requests: args.concurrent_requests,
        expires_at: args.expires_in.map(end).transpose()?.map(Time),
    };
    Ok(ApiKey::new(&args.name, spec))
}

async fn list(keys: &Api<ApiKey>, namespace: &str) -> Result<(), Failure> {
    let found = keys
        .list(&kube::api::ListParams::default())
        .await
        .map_err(ApiError::from)?;
    let mut table = ui::Table::new([
        "NAME",
        "ENDS IN",
        "MODELS",
        "TOKENS/MIN",
        "TOKENS/DAY",
        "TOKENS TODAY",
        "LAST USED",
        "EXPIRES",
    ]);
    let today = Clock::System.now().strftime("%Y-%m-%d").to_string();
    for key in &found.items {
        let status = key.status.clone().unwrap_or_default();
        let limit = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        let time = |time: &Option<Time>, none: &str| match time {
            Some(Time(at)) => format!("{at:.0}"),
            None => none.to_owned(),
        };
        table.add_row([
            key.name_any(),
            key.spec.secret_hint.clone().unwrap_or_default(),
            match key.spec.models.is_empty() {
                true => "all".to_owned(),
                false => key.spec.models.join(","),
            },
            limit(key.spec.tokens_per_minute),
            limit(key.spec.tokens_per_day),
            status.on_day(&today).tokens().to_string(),
            time(&status.last_used_time, "never"),
            time(&key.spec.expires_at, "never"),
        ]);
    }
    match table.is_empty() {
        true => ui::progress(&format!(
            "no API keys in namespace {namespace}; create one with `rooflet key create NAME`"
        )),
        false => ui::output(&format!("{table}\n")),
    }
    Ok(())
}

async fn delete(keys: &Api<ApiKey>, name: &str) -> Result<(), Failure> {
    match keys
        .delete(name, &DeleteParams::default())
        .await
        .map_err(ApiError::from)
    {
        Ok(_) => {
            ui::output(&format!("apikey.rooflet.dev/{name} deleted\n"));
            Ok(())
        }
        Err(ApiError::NotFound(_)) => {
            Err(anyhow!("no API key {name}; `rooflet key list` lists the keys of the namespace").into())
        }
        Err(err) => Err(err.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_of_a_used_name_deletes_the_key_of_its_namespace() {
        let err = unused_name(ApiError::AlreadyExists("exists".to_owned()), "team", "a");
        let text = format!("{err:#}");
        assert!(text.contains("`rooflet key delete a -n team`"), "{text}");
        let err = unused_name(ApiError::NotFound("missing".to_owned()), "team", "a");
        assert_eq!(err.chain().count(), 1, "{err:#}");
    }

    #[test]
    fn parses_counts() {
        for (text, expect) in [("500", 500), ("60k", 60_000), ("2M", 2_000_000), ("1.5k", 1500)] {
            assert_eq!(count(text), Ok(expect), "{text}");
        }
        for wrong in ["", "0", "k", "-5", "1.5", "60kk", "inf", "1e3", "60 k", "9999G"] {
            count(wrong).expect_err(wrong);
        }
    }
}
