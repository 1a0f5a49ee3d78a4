//! Network connection between two processes that can be interrupted, for simulated Macs that lose
//! their network.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use rooflet_base::task::Tasks;

const BUFFER_BYTES: usize = 16 << 10;

/// Interruptible connection. While it is interrupted, no bytes arrive and no error occurs; the
/// bytes arrive after reconnection.
#[derive(Debug)]
pub(super) struct NetworkLink {
    is_connected: watch::Sender<bool>,
}

impl NetworkLink {
    /// Forwards connections from `listener` to `target` (`HOST:PORT`) until `tasks` stop.
    pub(super) fn connect(tasks: &Tasks, listener: TcpListener, target: String) -> Self {
        let (is_connected, state) = watch::channel(true);
        let (connections, stop) = (tasks.clone(), tasks.stop_token());
        tasks.spawn_detached(async move {
            loop {
                let accepted = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                let Ok((near, _)) = accepted else { continue };
                let (target, state, stop) = (target.clone(), state.clone(), stop.clone());
                connections.spawn_detached(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        // Either side may close at any time; the other side then sees the end of
                        // its connection.
                        _ = carry(near, &target, state) => {}
                    }
                });
            }
        });
        Self { is_connected }
    }

    pub(super) fn set_connected(&self, is_connected: bool) {
        self.is_connected.send_replace(is_connected);
    }
}

/// Creates a listener and returns its address.
pub(super) async fn end() -> io::Result<(SocketAddr, TcpListener)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    Ok((listener.local_addr()?, listener))
}

async fn carry(near: TcpStream, target: &str, mut is_connected: watch::Receiver<bool>) -> io::Result<()> {
    wait(&mut is_connected).await?;
    let far = TcpStream::connect(target).await?;
    let (near_reads, near_writes) = near.into_split();
    let (far_reads, far_writes) = far.into_split();
    let back = is_connected.clone();
    tokio::try_join!(
        half(near_reads, far_writes, is_connected),
        half(far_reads, near_writes, back)
    )?;
    Ok(())
}

async fn half(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut is_connected: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        wait(&mut is_connected).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}

async fn wait(is_connected: &mut watch::Receiver<bool>) -> io::Result<()> {
    let plugged = is_connected.wait_for(|is_connected| *is_connected).await;
    plugged.map(drop).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn interruption_delays_bytes_and_loses_none() {
        let tasks = Tasks::new();
        let far = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, listener) = end().await.unwrap();
        let network_link = NetworkLink::connect(&tasks, listener, far.local_addr().unwrap().to_string());
        let mut near = TcpStream::connect(address).await.unwrap();
        let (mut far, _) = far.accept().await.unwrap();
        let mut seen = [0; 3];
        near.write_all(b"one").await.unwrap();
        far.read_exact(&mut seen).await.unwrap();
        network_link.set_connected(false);
        near.write_all(b"two").await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(200), far.read_exact(&mut seen)).await;
        assert!(early.is_err(), "{seen:?}");
        network_link.set_connected(true);
        far.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"two");
        drop(near);
        assert_eq!(
            far.read(&mut seen).await.unwrap(),
            0,
            "the end of the connection arrives as well"
        );
        tasks.cancel();
        tasks.join(Duration::from_secs(5)).await.unwrap();
    }
}
