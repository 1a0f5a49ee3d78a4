//! Spans and measurements of requests.

use super::*;
use rooflet_telemetry::recorder::{Measured, Recorder, SpanData, attribute, count, failed, value};
use rooflet_telemetry::trace::{SpanKind, Value as Attribute};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn traced() -> (WorkerConfig, Recorder) {
    let recorder = Recorder::of_sampled_callers();
    let tracer = recorder.tracer(Clock::System);
    (WorkerConfig { tracer, ..config() }, recorder)
}

/// Posts a request that belongs to a sampled trace.
async fn post(worker: &TestWorker, path: &str, body: &Value) -> Answer {
    let mut stream = TcpStream::connect(&worker.address).await.unwrap();
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: worker\r\ntraceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    read_answer(stream).await
}

/// Waits for the spans of one request; the server span ends last.
async fn spans(recorder: &Recorder) -> Vec<SpanData> {
    let ended = async {
        let mut spans = Vec::new();
        while spans
            .last()
            .is_none_or(|span: &SpanData| span.span_kind != SpanKind::Server)
        {
            tokio::task::yield_now().await;
            spans.extend(recorder.take_spans());
        }
        spans
    };
    tokio::time::timeout(DEADLINE, ended)
        .await
        .expect("server span ends before the deadline")
}

#[test]
fn request_has_a_span_with_children_for_engine_phases() {
    let (config, recorder) = traced();
    with_worker(config, move |worker| {
        Box::pin(async move {
            for stream in [false, true] {
                let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello ".repeat(60)}],
                                  "max_tokens": 5, "top_p": 0.9, "n": 2, "ignore_eos": true, "stream": stream});
                assert_eq!(post(worker, "/v1/chat/completions", &body).await.status, 200);
                let spans = spans(&recorder).await;
                let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
                let of_one = ["queue", "prefill", "decode"];
                assert_eq!(names, [&of_one[..], &of_one, &["chat tiny"]].concat());
                let root = &spans[6];
                assert_eq!(root.span_context.trace_id().to_string(), TRACE);
                assert_eq!(root.parent_span_id.to_string(), "b7ad6b7169203331");
                for child in &spans[..6] {
                    assert_eq!(
                        (child.span_context.trace_id(), child.parent_span_id),
                        (root.span_context.trace_id(), root.span_context.span_id())
                    );
                    assert!(root.start_time <= child.start_time + Duration::from_millis(1));
                    assert!(child.start_time <= child.end_time && child.end_time <= root.end_time);
                }
                assert_eq!(spans[0].end_time, spans[1].start_time);
                assert_eq!(attribute(root, "gen_ai.operation.name"), Some(value("chat")));
                assert_eq!(attribute(root, "gen_ai.request.max_tokens"), Some(value(5_usize)));
                assert_eq!(
                    attribute(root, "gen_ai.request.temperature"),
                    None,
                    "the request omits it"
                );
                assert_eq!(attribute(root, "gen_ai.request.top_p"), Some(value(0.9)));
                let read = |name| count(root, name).expect("span has the token count");
                let (cached, prompt) = (
                    read("gen_ai.usage.cache_read.input_tokens"),
                    read("gen_ai.usage.input_tokens"),
                );
                assert!(cached <= prompt, "{cached} of {prompt} tokens");
                // The second request hits the prefix cache.
                assert_eq!(cached > 0, stream);
                assert_eq!(
                    attribute(root, "gen_ai.usage.output_tokens"),
                    Some(value(10_usize))
                );
                assert_eq!(attribute(root, "http.response.status_code"), Some(value(200_u16)));
                let reasons = Attribute::Texts(vec!["length".to_owned(), "length".to_owned()]);
                assert_eq!(
                    attribute(root, "gen_ai.response.finish_reasons"),
                    Some(value(reasons))
                );
                assert!(!failed(root));
            }
            let embed = json!({"model": "tiny", "input": "Hello"});
            assert_eq!(post(worker, "/v1/embeddings", &embed).await.status, 200);
            let embedded = spans(&recorder).await;
            let root = embedded.last().unwrap();
            for name in [
                "gen_ai.request.max_tokens",
                "gen_ai.request.temperature",
                "gen_ai.usage.output_tokens",
                "gen_ai.response.finish_reasons",
            ] {
                assert_eq!(attribute(root, name), None, "{name}");
            }
            let wrong = json!({"model": "tiny", "messages": []});
            assert_eq!(post(worker, "/v1/chat/completions", &wrong).await.status, 400);
            let spans = spans(&recorder).await;
            assert_eq!(spans.len(), 1, "the request does not reach the engine");
            assert_eq!(attribute(&spans[0], "error.type"), Some(value("400")));
            assert!(!failed(&spans[0]), "client errors do not fail the span");

            // The sampler does not record requests without a sampled parent.
            assert_eq!(worker.chat(json!({})).await.status, 200);
            assert!(recorder.take_spans().is_empty());
        })
    });
}

#[test]
fn measures_requests_by_the_semantic_conventions() {
    let recorder = Recorder::default();
    let tracer = recorder.measuring_tracer(Clock::System);
    with_worker(WorkerConfig { tracer, ..config() }, move |worker| {
        Box::pin(async move {
            let two = json!({"n": 2, "max_tokens": 5, "temperature": 0, "ignore_eos": true});
            let answer = worker.chat(two).await;
            assert_eq!(answer.status, 200);
            assert_eq!(worker.chat(json!({"max_tokens": -1})).await.status, 400);
            let both = async {
                // A server span may end after the response, because it ends with the last
                // completion.
                loop {
                    let durations = recorder.measured("gen_ai.server.request.duration");
                    if durations.len() == 2 {
                        break durations;
                    }
                    tokio::task::yield_now().await;
                }
            };
            let durations = tokio::time::timeout(DEADLINE, both)
                .await
                .expect("spans end before the deadline");
            let counts = durations
                .iter()
                .map(|measured| (measured.attributes.as_str(), measured.count));
            assert_eq!(
                counts.collect::<Vec<_>>(),
                [("400 chat rooflet tiny", 1), ("chat rooflet tiny", 1)]
            );
            for name in [
                "gen_ai.server.time_to_first_token",
                "gen_ai.server.time_per_output_token",
            ] {
                let [measured] = &recorder.measured(name)[..] else {
                    panic!("{name}");
                };
                assert_eq!(
                    (measured.attributes.as_str(), measured.count),
                    ("chat rooflet tiny", 2),
                    "one per choice"
                );
                assert!(
                    measured.sum > 0.0 && measured.sum < 2.0 * durations[1].sum,
                    "{measured:?}"
                );
            }
            let usage = |attributes: &str, sum: f64| Measured {
                attributes: attributes.to_owned(),
                count: 1,
                sum,
            };
            let prompt = answer.json()["usage"]["prompt_tokens"].as_f64().unwrap();
            assert_eq!(
                recorder.measured("gen_ai.client.token.usage"),
                [
                    usage("chat rooflet tiny input", prompt),
                    usage("chat rooflet tiny output", 10.0)
                ]
            );
        })
    });
}
