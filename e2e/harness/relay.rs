//! A cable between two processes that can be pulled: everything that is sent over it passes through
//! here.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// What a cable does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Whole,
    /// Connections end, and new ones are closed at once: a process that is gone, or a router that
    /// says no.
    Closed,
    /// Nothing arrives and nobody is told: a cable that was pulled.
    Silent,
}

/// See the module.
pub(crate) struct Relay {
    link: watch::Sender<Link>,
}

impl Relay {
    /// Carries what comes to `listen` on to `target`.
    pub(crate) fn start(runtime: &Handle, listen: SocketAddr, target: SocketAddr) -> std::io::Result<Self> {
        let listener = runtime.block_on(TcpListener::bind(listen))?;
        let (link, seen) = watch::channel(Link::Whole);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, target, seen.clone()));
            }
        });
        Ok(Self { link })
    }

    pub(crate) fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

async fn carry(client: TcpStream, target: SocketAddr, mut link: watch::Receiver<Link>) {
    if link.wait_for(|link| *link != Link::Silent).await.is_err() || *link.borrow() == Link::Closed {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    // Either side may end its half and read on; a cable that is cut ends both.
    let (mut cut, closed) = (link.clone(), link.clone());
    let both = async {
        tokio::join!(
            half(client_reads, server_writes, link),
            half(server_reads, client_writes, closed),
        );
    };
    tokio::select! {
        () = both => {}
        _ = cut.wait_for(|link| *link == Link::Closed) => {}
    }
}

async fn half(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut link: watch::Receiver<Link>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if link.wait_for(|link| *link == Link::Whole).await.is_err()
            || to.write_all(&buffer[..count]).await.is_err()
        {
            break;
        }
    }
    // While nothing arrives, the end of a connection does not either.
    drop(link.wait_for(|link| *link == Link::Whole).await);
    drop(to.shutdown().await);
}
