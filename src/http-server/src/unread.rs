//! Detection of HTTP/2 responses that the client does not read. The connection stays alive and
//! other responses pass, so only the body can detect this case: hyper polls no frames while the
//! client's window is closed. Without a limit, the request of such a body would never end.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

use axum::BoxError;
use futures::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};

use rooflet_base::mutex::lock;

/// Number of checks without a poll after which a body is aborted. The first check may follow the
/// last poll immediately.
const MAX_LOOKS: u32 = 5;
/// Number of checks during the maximum time without a poll.
pub(super) const LOOKS: u32 = MAX_LOOKS - 1;
/// Marker instead of a count: a frame was polled and none is available.
const ASKED: u32 = u32::MAX;

/// Bodies of one connection.
#[derive(Default)]
pub(super) struct Bodies(Mutex<Vec<Weak<dyn Look + Send + Sync>>>);

trait Look {
    fn look(&self);
}

pub(super) struct Shared<B> {
    /// `None` if the body was aborted or has ended.
    body: Mutex<Option<Pin<Box<B>>>>,
    /// Number of checks since a frame was available or taken, or [`ASKED`].
    unasked: AtomicU32,
    asker: AtomicWaker,
}

/// Body that fails with [`io::ErrorKind::TimedOut`] if its frames are not polled. Unwatched bodies
/// are not limited.
pub(super) enum Watched<B> {
    Plain(Pin<Box<B>>),
    Shared(Arc<Shared<B>>),
}

impl Bodies {
    pub(super) fn watch<B: Send + 'static>(&self, body: B) -> Watched<B> {
        let shared = Arc::new(Shared {
            body: Mutex::new(Some(Box::pin(body))),
            unasked: AtomicU32::new(0),
            asker: AtomicWaker::new(),
        });
        let known: Arc<dyn Look + Send + Sync> = shared.clone();
        lock(&self.0).push(Arc::downgrade(&known));
        Watched::Shared(shared)
    }

    /// Checks all bodies. Must be called [`LOOKS`] times within the maximum unread time.
    pub(super) fn look(&self) {
        let mut live = Vec::new();
        lock(&self.0).retain(|body| {
            let body = body.upgrade();
            let is_live = body.is_some();
            live.extend(body);
            is_live
        });
        live.iter().for_each(|body| body.look());
    }
}

impl<B: Send> Look for Shared<B> {
    fn look(&self) {
        let looks = self.unasked.load(Ordering::Acquire);
        if looks == ASKED {
            return;
        }
        let one_more = looks.saturating_add(1);
        let counted = self
            .unasked
            .compare_exchange(looks, one_more, Ordering::AcqRel, Ordering::Acquire);
        if counted.is_ok() && one_more >= MAX_LOOKS {
            // Dropping the body can run other code, so it happens without the lock.
            let unread = lock(&self.body).take();
            drop(unread);
        }
    }
}

/// Waker of a body with an available frame: from then on, missing polls are counted.
impl<B: Send + 'static> Wake for Shared<B> {
    fn wake(self: Arc<Self>) {
        let _ = self
            .unasked
            .compare_exchange(ASKED, 0, Ordering::AcqRel, Ordering::Acquire);
        self.asker.wake();
    }
}

impl<B> Drop for Watched<B> {
    fn drop(&mut self) {
        if let Self::Shared(shared) = self {
            // Stored in the body, this waker would keep the body alive.
            let body = lock(&shared.body).take();
            drop(body);
        }
    }
}

impl<B> Body for Watched<B>
where
    B: Body<Error: Into<BoxError>> + Send + 'static,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let shared = match self.get_mut() {
            Self::Plain(body) => return body.as_mut().poll_frame(context).map_err(Into::into),
            Self::Shared(shared) => shared,
        };
        shared.asker.register(context.waker());
        shared.unasked.store(ASKED, Ordering::Release);
        let waker = Waker::from(Arc::clone(shared));
        let mut body = lock(&shared.body);
        let Some(body) = body.as_mut() else {
            let unread: BoxError = io::Error::from(io::ErrorKind::TimedOut).into();
            return Poll::Ready(Some(Err(unread)));
        };
        let frame = body.as_mut().poll_frame(&mut Context::from_waker(&waker));
        if frame.is_ready() {
            shared.unasked.store(0, Ordering::Release);
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Shared(shared) => lock(&shared.body)
                .as_ref()
                .is_some_and(|body| body.is_end_stream()),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Shared(shared) => {
                let body = lock(&shared.body);
                body.as_ref().map_or_else(SizeHint::new, |body| body.size_hint())
            }
        }
    }
}
