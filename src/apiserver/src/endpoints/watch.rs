//! Watches: streams of frames, each a line of JSON or a message in protobuf.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::FutureExt as _;
use futures::future::OptionFuture;
use futures::stream::{self, Stream};
use jiff::Timestamp;
use rand::Rng as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::endpoints::negotiate::{Conversion, Encoding, OutputMedia};
use crate::endpoints::options::ListOptions;
use crate::endpoints::representation::{IncludeObject, View};
use crate::engine::Engine;
use crate::engine::list::{await_version, parse_version};
use crate::engine::selection::Selection;
use crate::object;
use crate::registry::resource::{Resource, to_bytes};
use crate::status::ApiError;
use rooflet_apimachinery::protobuf;
use rooflet_base::metrics::IntGauge;
use rooflet_store::{Event, EventFilter, EventKind, Record, Revision, Watcher};

/// Interval of bookmarks for watches that requested them.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// Time between the last bookmark and the end of a watch.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Minimum duration of a watch without `timeoutSeconds`. The maximum is twice as long.
const DEFAULT_TIMEOUT_SECONDS: u64 = 30 * 60;
/// Maximum size of a chunk. Ready frames are sent together.
const CHUNK_MAX_BYTES: usize = 256 << 10;

/// Parameters of a watch.
pub(crate) struct WatchRequest {
    pub resource: Arc<Resource>,
    pub namespace: Option<String>,
    pub options: ListOptions,
    pub selection: Arc<Selection>,
    pub media: OutputMedia,
    pub include: IncludeObject,
}

/// Starts a watch. Errors returned here become HTTP errors; later errors are sent as frames.
pub(crate) async fn start(
    engine: &Engine,
    request: WatchRequest,
    stop: CancellationToken,
    open: OpenWatch,
) -> Result<impl Stream<Item = Bytes> + Send + 'static, ApiError> {
    let prefix = request.resource.prefix_in(request.namespace.as_deref());
    // kube-apiserver returns this error without a reason.
    let version =
        parse_version(&request.options.resource_version).map_err(|err| ApiError::untyped(err.message()))?;
    let sends_initial = request.options.send_initial_events.unwrap_or(version == 0);
    let mut initial = VecDeque::new();
    let mut ends_initial = None;
    let after = if sends_initial {
        await_version(engine, version).await?;
        let listing = engine
            .store
            .list(&prefix, &rooflet_store::ListOptions::default())
            .map_err(ApiError::internal)?;
        initial = listing.records.into();
        let announces =
            request.options.send_initial_events == Some(true) || request.options.resource_version == "0";
        let announces = announces && request.options.allow_bookmarks;
        ends_initial = announces.then_some(listing.revision);
        listing.revision
    } else if version == 0 {
        engine.store.revision()
    } else {
        Revision(version)
    };
    let seconds = request
        .options
        .timeout_seconds
        .unwrap_or_else(|| DEFAULT_TIMEOUT_SECONDS + rand::rng().random_range(0..DEFAULT_TIMEOUT_SECONDS));
    let (watcher, failure) = match watch_after(engine, &prefix, filter(&request), after).await {
        Ok(watcher) => (Some(watcher), None),
        Err(err) => (None, Some(err)),
    };
    let until_end = Duration::from_secs(seconds);
    let delay = bookmark_delay(until_end);
    let state = WatchStream {
        engine: engine.clone(),
        request,
        initial,
        ends_initial,
        watcher,
        failure,
        deadline: Box::pin(tokio::time::sleep(until_end)),
        bookmark: Box::pin(tokio::time::sleep(delay)),
        until_end: until_end - delay,
        has_columns: false,
        stop,
        _open: open,
    };
    Ok(stream::unfold(state, |mut state| async move {
        let chunk = state.next_chunk().await?;
        Some((chunk, state))
    }))
}

/// Returns the delay of the next bookmark: the period, or until shortly before the end of the watch.
/// After the last bookmark, it is the end itself.
fn bookmark_delay(until_end: Duration) -> Duration {
    match until_end.checked_sub(LAST_BOOKMARK) {
        Some(until_last) if !until_last.is_zero() => until_last.min(BOOKMARK_PERIOD),
        Some(_) | None => until_end,
    }
}

/// Starts a watcher after a revision.
///
/// A revision that the store does not reach soon is from another history: the data directory was
/// restored from a backup. kube-apiserver keeps such a watch open without events, and its client
/// never observes the older state. The error 410 makes the client list again.
async fn watch_after(
    engine: &Engine,
    prefix: &str,
    filter: Option<EventFilter>,
    after: Revision,
) -> Result<Watcher, ApiError> {
    if await_version(engine, after.0).await.is_err() {
        let current = engine.store.revision();
        return Err(ApiError::expired(format!(
            "too large resource version: {after}, current: {current}"
        )));
    }
    let watcher = match filter {
        Some(filter) => engine.store.watch_selected(prefix, filter, after),
        None => engine.store.watch(prefix, after),
    };
    watcher.map_err(|compacted| {
        ApiError::expired(format!(
            "too old resource version: {} ({})",
            compacted.requested, compacted.compacted
        ))
    })
}

/// Returns a filter of the events that the watch sends, or `None` if it sends all events.
///
/// Each agent watches the replicas of its own node. Without the filter, every change of a replica
/// wakes the watches of all nodes.
fn filter(request: &WatchRequest) -> Option<EventFilter> {
    if request.selection.is_everything() {
        return None;
    }
    let (resource, selection) = (request.resource.clone(), request.selection.clone());
    // The watch itself converts objects of other versions, which takes longer.
    let may_match =
        move |record: &Record| !resource.is_verbatim(record) || selection.may_match(&resource, record);
    Some(Box::new(move |event| {
        may_match(&event.record) || event.previous.as_deref().is_some_and(&may_match)
    }))
}

/// Guard that counts an open watch in the metrics.
pub(crate) struct OpenWatch(IntGauge);

impl OpenWatch {
    pub(crate) fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct WatchStream {
    engine: Engine,
    request: WatchRequest,
    /// Objects that existed at the start and have not been sent yet.
    initial: VecDeque<Arc<Record>>,
    /// Revision of the bookmark after the initial objects, if requested and not sent yet.
    ends_initial: Option<Revision>,
    /// `None` after the last event.
    watcher: Option<Watcher>,
    /// Error to send as the last frame.
    failure: Option<ApiError>,
    deadline: std::pin::Pin<Box<tokio::time::Sleep>>,
    bookmark: std::pin::Pin<Box<tokio::time::Sleep>>,
    /// Time between the next bookmark and the end.
    until_end: Duration,
    has_columns: bool,
    stop: CancellationToken,
    _open: OpenWatch,
}

/// Reason why a watch continues.
enum Wake {
    Event(Option<Arc<Event>>),
    Bookmark,
    Deadline,
    Stopped,
}

impl WatchStream {
    /// Returns the next frames, or `None` at the end of the stream.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            let mut chunk = BytesMut::new();
            self.add_initial(&mut chunk);
            if !chunk.is_empty() {
                return Some(chunk.freeze());
            }
            if let Some(err) = self.failure.take() {
                self.watcher = None;
                self.put_frame(&mut chunk, "ERROR", &to_bytes(&err.to_json()));
                return Some(chunk.freeze());
            }
            let wake = {
                let watcher = self.watcher.as_mut()?;
                let is_custom = self.request.resource.custom().is_some();
                let retired = self
                    .request
                    .resource
                    .custom()
                    .map(|custom| custom.retired.cancelled());
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => Wake::Stopped,
                    () = &mut self.deadline => Wake::Deadline,
                    event = watcher.next() => Wake::Event(event),
                    () = OptionFuture::from(retired).map(drop), if is_custom => Wake::Stopped,
                    () = &mut self.bookmark, if self.request.options.allow_bookmarks => Wake::Bookmark,
                }
            };
            match wake {
                // The client resumes after its last resourceVersion, so no event is lost.
                Wake::Stopped | Wake::Event(None) => return None,
                Wake::Event(Some(event)) => {
                    self.add_event(&mut chunk, &event);
                    self.add_ready(&mut chunk);
                }
                Wake::Bookmark => {
                    let delay = bookmark_delay(self.until_end);
                    self.until_end = self.until_end.saturating_sub(delay);
                    self.bookmark = Box::pin(tokio::time::sleep(delay));
                    self.add_bookmark(&mut chunk, None);
                }
                Wake::Deadline => {
                    self.add_ready(&mut chunk);
                    self.watcher = None;
                }
            }
            if !chunk.is_empty() {
                return Some(chunk.freeze());
            }
        }
    }

    fn add_initial(&mut self, chunk: &mut BytesMut) {
        while chunk.len() < CHUNK_MAX_BYTES
            && let Some(record) = self.initial.pop_front()
        {
            if self.request.selection.matches(&self.request.resource, &record) {
                self.add_record(chunk, "ADDED", &record);
            }
        }
        if self.initial.is_empty()
            && let Some(version) = self.ends_initial.take()
        {
            self.add_bookmark(chunk, Some(version));
        }
    }

    fn add_ready(&mut self, chunk: &mut BytesMut) {
        while chunk.len() < CHUNK_MAX_BYTES
            && let Some(event) = self.watcher.as_mut().and_then(Watcher::ready)
        {
            self.add_event(chunk, &event);
        }
    }

    /// Adds an event. An object that leaves the selection is sent as deleted; one that enters it as
    /// added.
    fn add_event(&mut self, chunk: &mut BytesMut, event: &Event) {
        let is_everything = self.request.selection.is_everything();
        let is_selected =
            |record: &Record| is_everything || self.request.selection.matches(&self.request.resource, record);
        let was_selected = event.previous.as_deref().is_some_and(is_selected);
        match event.kind {
            EventKind::Created if is_selected(&event.record) => {
                self.add_record(chunk, "ADDED", &event.record)
            }
            EventKind::Deleted if was_selected => self.add_record(chunk, "DELETED", &event.record),
            EventKind::Modified => match (was_selected, is_selected(&event.record)) {
                (true, true) => self.add_record(chunk, "MODIFIED", &event.record),
                (false, true) => self.add_record(chunk, "ADDED", &event.record),
                (true, false) => {
                    if let Some(previous) = &event.previous {
                        self.add_deselected(chunk, previous, event.revision);
                    }
                }
                (false, false) => {}
            },
            EventKind::Created | EventKind::Deleted => {}
        }
    }

    fn add_record(&mut self, chunk: &mut BytesMut, kind: &str, record: &Record) {
        let resource = Arc::clone(&self.request.resource);
        if self.request.media.conversion == Conversion::Object {
            self.put_frame(chunk, kind, &resource.object_bytes(record));
        } else {
            self.add_converted(chunk, kind, &resource.view(record));
        }
    }

    /// Adds a deletion with the last selected content and the revision of the change.
    fn add_deselected(&mut self, chunk: &mut BytesMut, previous: &Record, revision: Revision) {
        let resource = Arc::clone(&self.request.resource);
        let mut working = Arc::unwrap_or_clone(resource.view(previous));
        object::set_resource_version(&mut working, revision);
        self.add_converted(chunk, "DELETED", &working);
    }

    fn add_bookmark(&mut self, chunk: &mut BytesMut, ends_initial: Option<Revision>) {
        let Some(watcher) = &self.watcher else { return };
        let version = ends_initial.unwrap_or_else(|| watcher.progress());
        let bookmark = self.request.resource.bookmark(version, ends_initial.is_some());
        if self.request.media.conversion == Conversion::Object {
            self.put_frame(chunk, "BOOKMARK", &to_bytes(&bookmark));
        } else {
            let mut bookmark = bookmark;
            bookmark["metadata"]["creationTimestamp"] = Value::Null;
            self.add_converted(chunk, "BOOKMARK", &bookmark);
        }
    }

    fn add_converted(&mut self, chunk: &mut BytesMut, kind: &str, working: &Value) {
        let resource = Arc::clone(&self.request.resource);
        let view = View {
            resource: &resource,
            conversion: self.request.media.conversion,
            include: self.request.include,
            now: self.now(),
        };
        match view.converted(working, !self.has_columns) {
            Ok(bytes) => {
                self.has_columns = true;
                self.put_frame(chunk, kind, &bytes);
            }
            Err(err) => self.failure = Some(err),
        }
    }

    /// Adds a frame with an object in JSON.
    fn put_frame(&mut self, chunk: &mut BytesMut, kind: &str, object: &[u8]) {
        if self.request.media.encoding != Encoding::Protobuf {
            return put_line(chunk, kind, object);
        }
        let object = serde_json::from_slice(object).map_err(ApiError::internal);
        let frame =
            object.and_then(|object: Value| protobuf::watch_frame(kind, &object).map_err(ApiError::internal));
        match frame {
            Ok(frame) => chunk.put_slice(&frame),
            Err(err) => self.failure = Some(err),
        }
    }

    fn now(&self) -> Timestamp {
        self.engine.clock.now()
    }
}

fn put_line(chunk: &mut BytesMut, kind: &str, object: &[u8]) {
    chunk.reserve(object.len() + 48);
    chunk.put_slice(b"{\"type\":\"");
    chunk.put_slice(kind.as_bytes());
    chunk.put_slice(b"\",\"object\":");
    chunk.put_slice(object);
    chunk.put_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use crate::builtin::BuiltIn;
    use crate::endpoints::negotiate;
    use crate::endpoints::request::Query;
    use crate::registry::Registry;
    use rooflet_base::clock::Clock;
    use rooflet_store::Store;

    #[test]
    fn last_bookmark_precedes_the_end_of_the_watch() {
        let delay = |seconds| bookmark_delay(Duration::from_secs(seconds)).as_secs();
        assert_eq!([delay(3_000), delay(50), delay(3)], [60, 48, 1]);
        assert_eq!([delay(2), delay(1)], [2, 1], "no bookmark before the end");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_watch_sends_bookmarks_every_minute() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let config = crate::store_config(directory.path().join("store.redb"));
        let store = Store::open(config, Clock::System).expect("a new store");
        let engine = Engine::new(store.clone(), Registry::new(store, Clock::System), Clock::System);
        let snapshot = engine.registry.snapshot();
        let open = async |query: &str| {
            let resource = Arc::clone(snapshot.built_in(BuiltIn::ConfigMap));
            let options = ListOptions::parse(&Query::parse(query), true).expect("valid options");
            let request = WatchRequest {
                selection: Arc::new(Selection::parse(&resource, "", "", None).expect("everything")),
                resource,
                namespace: None,
                options,
                media: negotiate::output("", true).expect("JSON"),
                include: IncludeObject::Metadata,
            };
            let gauge = IntGauge::new("watches", "help").expect("a gauge");
            let stop = CancellationToken::new();
            start(&engine, request, stop, OpenWatch::new(gauge))
                .await
                .expect("a watch")
        };
        let mut watch = std::pin::pin!(open("allowWatchBookmarks=true&timeoutSeconds=150").await);
        for _ in 0..2 {
            let early = tokio::time::timeout(BOOKMARK_PERIOD - Duration::from_secs(1), watch.next()).await;
            assert!(early.is_err(), "{early:?}");
            let frame = tokio::time::timeout(Duration::from_secs(2), watch.next()).await;
            let frame = frame.expect("in time").expect("a frame");
            let frame: Value = serde_json::from_slice(&frame).expect("JSON");
            assert_eq!(
                (&frame["type"], &frame["object"]["kind"]),
                (&"BOOKMARK".into(), &"ConfigMap".into())
            );
            let version = engine.store.revision().0.to_string();
            assert_eq!(frame["object"]["metadata"]["resourceVersion"], *version);
        }
        let mut silent = std::pin::pin!(open("timeoutSeconds=150").await);
        assert_eq!(silent.next().await, None, "bookmarks are sent only on request");
    }

    #[test]
    fn frame_is_one_line_of_json() {
        let mut chunk = BytesMut::new();
        put_line(&mut chunk, "ADDED", b"{\"a\":1}");
        assert_eq!(&chunk[..], b"{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n");
    }
}
