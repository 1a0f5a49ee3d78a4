//! Sends one question to a served model and prints the streamed answer.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;

use super::super::bench::event_stream::Events;
use super::super::ui;
use rooflet_base::clock::Clock;

/// Timeout of the whole answer.
const ANSWER: Duration = Duration::from_secs(120);
/// Maximum answer length in tokens.
const MAX_TOKENS: u32 = 200;

/// Prints the answer of `model` behind `gateway`, then its length and speed as measured by this
/// client.
pub(super) async fn ask(gateway: &str, model: &str, question: &str, clock: &Clock) -> anyhow::Result<()> {
    let body = json!({
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    ui::progress(&format!("\nasking {model}: {question}"));
    // The gateway is local, and a configured proxy usually serves external addresses only.
    let client = reqwest::Client::builder().no_proxy().timeout(ANSWER).build()?;
    let begin = clock.instant();
    let url = format!("{gateway}/v1/chat/completions");
    let response = client
        .post(&url)
        .json(&body)
        .send()
        .await
        .with_context(|| format!("no answer from {url}"))?;
    if !response.status().is_success() {
        bail!(
            "{url} answered {}: {}",
            response.status(),
            response.text().await.unwrap_or_default()
        );
    }
    let (mut first, mut last, mut tokens, mut text) = (None, begin, 0, String::new());
    let mut events = Events::new(response);
    while let Some(chunk) = events.next().await? {
        if let Some(piece) = chunk["choices"][0]["delta"]["content"]
            .as_str()
            .filter(|piece| !piece.is_empty())
        {
            first.get_or_insert_with(|| clock.instant());
            last = clock.instant();
            text.push_str(piece);
            ui::output(piece);
        }
        tokens = chunk["usage"]["completion_tokens"].as_u64().unwrap_or(tokens);
    }
    ui::output("\n");
    let Some(first) = first.filter(|_| events.is_done() && !text.trim().is_empty()) else {
        bail!("the answer was empty or incomplete");
    };
    let decode = (last - first).as_secs_f64();
    let speed = if decode > 0.0 {
        tokens.saturating_sub(1) as f64 / decode
    } else {
        0.0
    };
    ui::progress(&format!(
        "{tokens} tokens, {speed:.1} tokens/s, first token after {:.2} s (measured by this client)",
        (first - begin).as_secs_f64()
    ));
    Ok(())
}
