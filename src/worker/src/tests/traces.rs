//! Spans of requests, as they leave the worker.

use tokio::sync::mpsc;

use super::*;
use rooflet_telemetry::meter::{Instrument, Meter};
use rooflet_telemetry::trace::{Sampler, Span, SpanKind, SpanQueue, Tracer, Value as Attribute};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn traced() -> (WorkerConfig, mpsc::Receiver<Span>) {
    let (spans_tx, spans_rx) = mpsc::channel(100);
    let sampler = Sampler {
        share: 0.0,
        asks_caller: true,
    };
    let queue = SpanQueue {
        spans_tx,
        lost: Arc::default(),
        sampler,
    };
    let tracer = Tracer::new(Some(queue), None, Clock::System);
    let config = WorkerConfig { tracer, ..config() };
    (config, spans_rx)
}

/// Sent by a caller whose trace is collected.
async fn post(subject: &Subject, path: &str, body: &Value) -> Answer {
    let mut stream = TcpStream::connect(&subject.address).await.unwrap();
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: worker\r\ntraceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    read_answer(stream).await
}

/// The spans of one request; its own is the last.
async fn spans(spans_rx: &mut mpsc::Receiver<Span>) -> Vec<Span> {
    let mut spans = Vec::new();
    loop {
        let span = tokio::time::timeout(DEADLINE, spans_rx.recv()).await;
        let span = span.expect("in time").expect("the worker is there");
        let is_last = span.kind == SpanKind::Server;
        spans.push(span);
        if is_last {
            return spans;
        }
    }
}

fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a Attribute> {
    let mut all = span.attributes.iter();
    all.find(|(known, _)| *known == name).map(|(_, value)| value)
}

#[test]
fn a_request_has_a_span_and_what_the_engine_did_its_children() {
    let (config, mut spans_rx) = traced();
    with_worker(config, move |subject| {
        Box::pin(async move {
            for stream in [false, true] {
                let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello ".repeat(60)}],
                                  "max_tokens": 5, "top_p": 0.9, "n": 2, "ignore_eos": true, "stream": stream});
                assert_eq!(post(subject, "/v1/chat/completions", &body).await.status, 200);
                let spans = spans(&mut spans_rx).await;
                let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
                let of_one = ["queue", "prefill", "decode"];
                assert_eq!(names, [&of_one[..], &of_one, &["chat tiny"]].concat());
                let root = &spans[6];
                assert_eq!(root.context.trace.to_string(), TRACE);
                assert_eq!(root.parent.unwrap().to_string(), "b7ad6b7169203331");
                for child in &spans[..6] {
                    assert_eq!(
                        (child.context.trace, child.parent),
                        (root.context.trace, Some(root.context.span))
                    );
                    assert!(root.begin_nanos <= child.begin_nanos + 1_000_000);
                    assert!(child.begin_nanos <= child.end_nanos && child.end_nanos <= root.end_nanos);
                }
                assert_eq!(spans[0].end_nanos / 1_000_000, spans[1].begin_nanos / 1_000_000);
                assert_eq!(attribute(root, "gen_ai.operation.name"), Some(&"chat".into()));
                assert_eq!(
                    attribute(root, "gen_ai.request.max_tokens"),
                    Some(&5_usize.into())
                );
                assert_eq!(
                    attribute(root, "gen_ai.request.temperature"),
                    None,
                    "it named none"
                );
                assert_eq!(
                    attribute(root, "gen_ai.request.top_p"),
                    Some(&Attribute::Float(0.9))
                );
                let read = |name| match attribute(root, name) {
                    Some(Attribute::Int(tokens)) => *tokens,
                    other => panic!("{other:?}"),
                };
                let (cached, prompt) = (
                    read("gen_ai.usage.cache_read.input_tokens"),
                    read("gen_ai.usage.input_tokens"),
                );
                assert!(cached <= prompt, "{cached} of {prompt} tokens");
                // The first request's cache serves the second.
                assert_eq!(cached > 0, stream);
                assert_eq!(
                    attribute(root, "gen_ai.usage.output_tokens"),
                    Some(&10_usize.into())
                );
                assert_eq!(
                    attribute(root, "http.response.status_code"),
                    Some(&200_u16.into())
                );
                let reasons = Attribute::Texts(vec!["length".to_owned(), "length".to_owned()]);
                assert_eq!(attribute(root, "gen_ai.response.finish_reasons"), Some(&reasons));
                assert!(!root.failed);
            }
            let embed = json!({"model": "tiny", "input": "Hello"});
            assert_eq!(post(subject, "/v1/embeddings", &embed).await.status, 200);
            let embedded = spans(&mut spans_rx).await;
            let root = embedded.last().unwrap();
            for answers in [
                "gen_ai.request.max_tokens",
                "gen_ai.request.temperature",
                "gen_ai.usage.output_tokens",
                "gen_ai.response.finish_reasons",
            ] {
                assert_eq!(attribute(root, answers), None, "{answers}");
            }
            let wrong = json!({"model": "tiny", "messages": []});
            assert_eq!(post(subject, "/v1/chat/completions", &wrong).await.status, 400);
            let spans = spans(&mut spans_rx).await;
            assert_eq!(spans.len(), 1, "the engine never heard of it");
            assert_eq!(attribute(&spans[0], "error.type"), Some(&"400".into()));
            assert!(!spans[0].failed, "it was the client's");

            // Without a caller that collects, this sampler takes none.
            assert_eq!(subject.chat(json!({})).await.status, 200);
            assert!(spans_rx.try_recv().is_err());
        })
    });
}

#[test]
fn requests_are_measured_as_the_conventions_say() {
    let meter = Meter::default();
    let tracer = Tracer::new(None, Some(meter.clone()), Clock::System);
    with_worker(WorkerConfig { tracer, ..config() }, move |subject| {
        Box::pin(async move {
            let two = json!({"n": 2, "max_tokens": 5, "temperature": 0, "ignore_eos": true});
            let answer = subject.chat(two).await;
            assert_eq!(answer.status, 200);
            assert_eq!(subject.chat(json!({"max_tokens": -1})).await.status, 400);
            let both = async {
                // A request's span goes with its last completion, which may be after its answer.
                loop {
                    let measured = meter.measured();
                    let requests = measured.get(&Instrument::RequestDuration);
                    if requests.is_some_and(|requests| requests.len() == 2) {
                        break measured;
                    }
                    tokio::task::yield_now().await;
                }
            };
            let measured = tokio::time::timeout(DEADLINE, both).await.expect("in time");
            let sums = |instrument: Instrument| -> Vec<(String, u64, f64)> {
                let histograms = measured[&instrument].iter();
                let sums = histograms.map(|(attributes, histogram)| {
                    let values: Vec<&str> = attributes.iter().map(|(_, value)| value.as_str()).collect();
                    (values.join(" "), histogram.counts.iter().sum(), histogram.sum)
                });
                sums.collect()
            };
            let durations = sums(Instrument::RequestDuration);
            assert_eq!(
                (durations[0].0.as_str(), durations[0].1),
                ("chat rooflet tiny", 1)
            );
            assert_eq!(
                (durations[1].0.as_str(), durations[1].1),
                ("chat rooflet tiny 400", 1)
            );
            for instrument in [Instrument::TimeToFirstToken, Instrument::TimePerOutputToken] {
                let [(of, count, sum)] = &sums(instrument)[..] else {
                    panic!("{measured:?}");
                };
                assert_eq!(
                    (of.as_str(), *count),
                    ("chat rooflet tiny", 2),
                    "one for each choice"
                );
                assert!(*sum > 0.0 && *sum < 2.0 * durations[0].2, "{measured:?}");
            }
            let prompt = answer.json()["usage"]["prompt_tokens"].as_f64().unwrap();
            let usage = [
                ("chat rooflet tiny input".to_owned(), 1, prompt),
                ("chat rooflet tiny output".to_owned(), 1, 10.0),
            ];
            assert_eq!(sums(Instrument::TokenUsage), usage);
        })
    });
}
