//! Triggers of a process's shutdown: SIGTERM, SIGINT, or the exit of its parent process.

use std::io::{self, Read};

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use rooflet_base::error::ExitStatus;
use rooflet_base::task::Tasks;

/// Stops `tasks` at the first SIGTERM or SIGINT. A second signal exits the process immediately.
pub fn on_signal(tasks: &Tasks) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let set = tasks.clone();
    tasks.spawn_unjoined(async move {
        for nth in 1.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if nth == 1 {
                info!("received signal, stopping; a second signal exits immediately");
                set.cancel();
            } else {
                exit_now();
            }
        }
    });
    Ok(())
}

/// Stops `tasks` when standard input closes. A supervisor holds the other end of the pipe. The
/// system closes it even if the supervisor is killed, on every Unix.
pub fn on_stdin_end(tasks: &Tasks) -> io::Result<()> {
    let set = tasks.clone();
    // A separate thread, because a blocking read of standard input cannot be cancelled. It ends
    // with the process.
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut buffer = [0; 64];
            while !matches!(io::stdin().read(&mut buffer), Ok(0) | Err(_)) {}
            info!("supervisor exited, stopping");
            set.cancel();
        })?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a second signal requests an immediate exit"
)]
fn exit_now() {
    std::process::exit(ExitStatus::Failure as i32);
}
