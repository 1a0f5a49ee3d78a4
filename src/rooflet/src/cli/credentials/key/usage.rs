//! `rooflet key usage`

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::cli::{Failure, ui};
use rooflet_api::v1alpha1::{ApiKey, KeyUsage};
use rooflet_base::clock::Clock;
use rooflet_client::ApiError;

/// Arguments of `rooflet key usage`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Names of the keys. Default: all keys of the namespace.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Number of days before today. The last 35 days are kept.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=35))]
    days: u32,
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

/// Form of the output.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Format {
    #[default]
    Text,
    Csv,
}

/// Use of a key on a day.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    day: String,
    key: String,
    model: String,
    usage: KeyUsage,
}

pub(super) async fn run(keys: &Api<ApiKey>, args: Args) -> Result<(), Failure> {
    let found = keys.list(&ListParams::default()).await.map_err(ApiError::from)?;
    for name in &args.names {
        if !found.items.iter().any(|key| key.name_any() == *name) {
            let missing =
                anyhow::anyhow!("no API key {name}; `rooflet key list` lists the keys of the namespace");
            return Err(missing.into());
        }
    }
    let selected = found.items.iter().filter(|key| {
        let name = key.name_any();
        args.names.is_empty() || args.names.contains(&name)
    });
    let rows = rows(selected, Clock::System.now(), args.days);
    match args.output {
        Format::Csv => ui::output(&csv(&rows)),
        Format::Text if rows.is_empty() => ui::progress("no use in these days"),
        Format::Text => ui::output(&format!("{}\n", table(&rows))),
    }
    Ok(())
}

/// Returns the use by day, key and model, in this order, over all gateways.
fn rows<'a>(keys: impl IntoIterator<Item = &'a ApiKey>, now: Timestamp, days: u32) -> Vec<Row> {
    let first = now - SignedDuration::from_hours(24 * i64::from(days));
    let first = first.strftime("%Y-%m-%d").to_string();
    let mut sums: BTreeMap<(String, String, String), KeyUsage> = BTreeMap::new();
    for key in keys {
        let gateways = key.status.iter().flat_map(|status| status.gateways.values());
        for (day, models) in gateways.flat_map(|gateway| &gateway.days) {
            if *day < first {
                continue;
            }
            for (model, usage) in models {
                *sums
                    .entry((day.clone(), key.name_any(), model.clone()))
                    .or_default() += *usage;
            }
        }
    }
    let row = |((day, key, model), usage)| Row {
        day,
        key,
        model,
        usage,
    };
    sums.into_iter().map(row).collect()
}

/// Returns the rows as CSV (RFC 4180).
fn csv(rows: &[Row]) -> String {
    let mut text = "day,key,model,requests,prompt_tokens,completion_tokens\n".to_owned();
    for Row {
        day,
        key,
        model,
        usage,
    } in rows
    {
        let model = match model.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", model.replace('"', "\"\"")),
            false => model.clone(),
        };
        text.push_str(&format!(
            "{day},{key},{model},{},{},{}\n",
            usage.requests, usage.prompt_tokens, usage.completion_tokens
        ));
    }
    text
}

fn table(rows: &[Row]) -> ui::Table {
    let mut table = ui::Table::new([
        "DAY",
        "KEY",
        "MODEL",
        "REQUESTS",
        "PROMPT TOKENS",
        "COMPLETION TOKENS",
    ]);
    for row in rows {
        table.add_row([
            row.day.clone(),
            row.key.clone(),
            row.model.clone(),
            row.usage.requests.to_string(),
            row.usage.prompt_tokens.to_string(),
            row.usage.completion_tokens.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_api::v1alpha1::ApiKeySpec;

    #[test]
    fn sums_gateways_and_skips_older_days() {
        let mut key = ApiKey::new("team-a", ApiKeySpec::default());
        let of = |days: serde_json::Value| serde_json::json!({ "days": days });
        let status = serde_json::json!({"gateways": {
            "a": of(serde_json::json!({
                "2026-02-01": {"guide": {"requests": 9, "promptTokens": 9, "completionTokens": 9}},
                "2026-03-01": {"guide": {"requests": 1, "promptTokens": 10, "completionTokens": 5}},
            })),
            "b": of(serde_json::json!({
                "2026-03-01": {"guide": {"requests": 2, "promptTokens": 1, "completionTokens": 1},
                               "a,b": {"requests": 1, "promptTokens": 1, "completionTokens": 0}},
            })),
        }});
        key.status = Some(serde_json::from_value(status).expect("a status"));
        let now = "2026-03-02T00:00:01Z".parse().expect("a time");
        assert_eq!(
            csv(&rows([&key], now, 5)),
            "day,key,model,requests,prompt_tokens,completion_tokens\n\
             2026-03-01,team-a,\"a,b\",1,1,0\n\
             2026-03-01,team-a,guide,3,11,6\n"
        );
        assert!(rows([&key], now, 0).is_empty());
    }
}
