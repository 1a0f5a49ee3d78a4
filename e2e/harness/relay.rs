//! TCP relay between two processes, which can simulate a broken link.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// State of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// Connections end, and new ones are closed immediately, as after the exit of a process.
    Closed,
    /// Data is not delivered, and connections stay open, as after a pulled cable.
    Blackhole,
}

/// Running relay.
pub(crate) struct Relay {
    link: watch::Sender<Link>,
}

impl Relay {
    /// Starts a relay from `listen` to `target`.
    pub(crate) fn start(runtime: &Handle, listen: SocketAddr, target: SocketAddr) -> std::io::Result<Self> {
        let listener = runtime.block_on(TcpListener::bind(listen))?;
        let (link, receiver) = watch::channel(Link::Up);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, target, receiver.clone()));
            }
        });
        Ok(Self { link })
    }

    pub(crate) fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

async fn forward(client: TcpStream, target: SocketAddr, mut link: watch::Receiver<Link>) {
    if link.wait_for(|link| *link != Link::Blackhole).await.is_err() || *link.borrow() == Link::Closed {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    // Each side may close its direction and continue to read. A closed link ends both directions.
    let (mut cut, closed) = (link.clone(), link.clone());
    let both = async {
        tokio::join!(
            copy_half(client_reads, server_writes, link),
            copy_half(server_reads, client_writes, closed),
        );
    };
    tokio::select! {
        () = both => {}
        _ = cut.wait_for(|link| *link == Link::Closed) => {}
    }
}

async fn copy_half(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut link: watch::Receiver<Link>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if link.wait_for(|link| *link == Link::Up).await.is_err()
            || to.write_all(&buffer[..count]).await.is_err()
        {
            break;
        }
    }
    // In a black hole, the end of the connection is not delivered, either.
    drop(link.wait_for(|link| *link == Link::Up).await);
    drop(to.shutdown().await);
}
