//! What makes a process stop: SIGTERM, SIGINT, or the end of the parent that started it.

use std::io::{self, Read};

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use rooflet_base::error::ExitStatus;
use rooflet_base::task::Tasks;

/// Stops `tasks` at the first SIGTERM or SIGINT, and ends the process at once at the second.
pub(crate) fn on_signal(tasks: &Tasks) -> io::Result<()> {
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
                info!("asked to stop; a second signal stops at once");
                set.cancel();
            } else {
                exit_now();
            }
        }
    });
    Ok(())
}

/// Stops `tasks` when standard input ends. A supervisor holds the other end of that pipe, and the system closes it
/// however the supervisor ends, `kill -9` included; this works on every Unix alike.
pub(crate) fn on_stdin_end(tasks: &Tasks) -> io::Result<()> {
    let set = tasks.clone();
    // A thread of its own, because a blocking read of standard input cannot be cancelled; it ends with the process.
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut buffer = [0; 64];
            while !matches!(io::stdin().read(&mut buffer), Ok(0) | Err(_)) {}
            info!("the supervisor is gone; stopping");
            set.cancel();
        })?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a second signal means: now, whatever still runs"
)]
fn exit_now() {
    std::process::exit(ExitStatus::Failure as i32);
}
