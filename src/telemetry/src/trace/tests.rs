use http::HeaderValue;
use opentelemetry_sdk::trace::Sampler;

use super::*;
use crate::recorder::{Measured, Recorder};
use rooflet_base::clock::ManualClock;

fn headers(flags: &str) -> HeaderMap {
    let text = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
    HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_str(&text).unwrap())])
}

#[test]
fn follows_the_callers_sampling_decision() {
    let is_sampled = |recorder: &Recorder, headers: &HeaderMap| {
        drop(recorder.tracer(Clock::System).server("chat".to_owned(), headers));
        !recorder.take_spans().is_empty()
    };
    let none = HeaderMap::new();
    let always = Recorder::default();
    assert!(is_sampled(&always, &none) && is_sampled(&always, &headers("01")));
    assert!(!is_sampled(&always, &headers("00")));
    let callers = Recorder::of_sampled_callers();
    assert!(!is_sampled(&callers, &none) && is_sampled(&callers, &headers("01")));
    assert!(Tracer::default().server("chat".to_owned(), &none).is_none());
}

#[test]
fn measures_requests_whether_or_not_they_are_sampled() {
    let recorder = Recorder::new(Sampler::AlwaysOff);
    let clock = ManualClock::new(Clock::System.now());
    let tracer = recorder.tracer(Clock::Manual(clock.clone()));
    let request = |operation: Option<&str>, error: Option<&str>| {
        let span = tracer.server("chat".to_owned(), &headers("01")).unwrap();
        let header = span.context().unwrap().to_header();
        assert!(header.to_str().unwrap().ends_with("-00"), "{header:?}");
        if let Some(operation) = operation {
            span.set(OPERATION, operation);
        }
        span.set(REQUEST_MODEL, "tiny");
        span.set(INPUT_TOKENS, 5_usize);
        span.add(OUTPUT_TOKENS, 3);
        span.add(OUTPUT_TOKENS, 4);
        drop(span.child("attempt", SpanKind::Client));
        clock.advance(Duration::from_millis(30));
        match error {
            Some(error) => span.set(ERROR_TYPE, error),
            None => span.measure(Instrument::TimeToFirstToken, Duration::from_millis(7)),
        }
    };
    request(Some("chat"), None);
    request(Some("chat"), Some("cancelled"));
    request(None, None);
    assert!(recorder.take_spans().is_empty(), "nothing is sampled");
    let measured = |attributes: &str, sum: f64| Measured {
        attributes: attributes.to_owned(),
        count: 1,
        sum,
    };
    assert_eq!(
        recorder.measured("gen_ai.server.request.duration"),
        [measured("cancelled chat tiny", 0.03), measured("chat tiny", 0.03)]
    );
    assert_eq!(
        recorder.measured("gen_ai.server.time_to_first_token"),
        [measured("chat tiny", 0.007)]
    );
    assert_eq!(
        recorder.measured("gen_ai.client.token.usage"),
        [
            measured("chat tiny input", 5.0),
            measured("chat tiny output", 7.0)
        ]
    );
}

#[test]
fn propagates_no_context_without_span_export() {
    let tracer = Recorder::default().measuring_tracer(Clock::System);
    let span = tracer.server("chat".to_owned(), &headers("01")).unwrap();
    assert_eq!(span.context(), None);
    assert_eq!(span.child("POST", SpanKind::Client).context(), None);
}

#[test]
fn setting_the_wall_clock_does_not_change_durations() {
    let recorder = Recorder::default();
    let manual = ManualClock::new(Clock::System.now());
    let clock = Clock::Manual(manual.clone());
    let tracer = recorder.tracer(clock.clone());
    let root = tracer.server("chat".to_owned(), &headers("01")).unwrap();
    let begin = clock.instant();
    manual.sleep(Duration::from_secs(3600));
    let child = root.child("attempt", SpanKind::Client);
    manual.advance(Duration::from_millis(30));
    root.interval("queue", begin, clock.instant(), vec![]);
    drop(child);
    drop(root);
    let spans = recorder.take_spans();
    assert_eq!(spans.len(), 3);
    for span in &spans {
        assert_eq!(span.start_time, spans[2].start_time, "{}", span.name);
        let duration = span.end_time.duration_since(span.start_time).unwrap();
        assert_eq!(duration, Duration::from_millis(30), "{}", span.name);
    }
}
