//! Lines of a log, with the name of their process.

use std::collections::VecDeque;

use futures::{Stream, StreamExt};

/// Maximum length of a line, in bytes. Longer lines are printed in parts.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Splits bytes into lines and puts `[NAME] ` before each.
pub(super) fn prefixed_lines<B: AsRef<[u8]>>(
    name: String,
    bytes: impl Stream<Item = anyhow::Result<B>>,
) -> impl Stream<Item = anyhow::Result<Vec<u8>>> {
    split(format!("[{name}] "), bytes)
}

/// Splits bytes into lines.
pub(super) fn lines<B: AsRef<[u8]>>(
    bytes: impl Stream<Item = anyhow::Result<B>>,
) -> impl Stream<Item = anyhow::Result<Vec<u8>>> {
    split(String::new(), bytes)
}

/// Returns the length of `[NAME] ` at the beginning of a line.
pub(super) fn prefix_len(line: &[u8]) -> usize {
    let end = line.windows(2).position(|pair| pair == b"] ");
    match end.filter(|_| line.starts_with(b"[")) {
        Some(end) => end + 2,
        None => 0,
    }
}

fn split<B: AsRef<[u8]>>(
    prefix: String,
    bytes: impl Stream<Item = anyhow::Result<B>>,
) -> impl Stream<Item = anyhow::Result<Vec<u8>>> {
    let state = State {
        bytes: Box::pin(bytes),
        prefix,
        partial: Vec::new(),
        ready: VecDeque::new(),
        has_ended: false,
    };
    futures::stream::unfold(state, |mut state| async move {
        loop {
            if let Some(line) = state.ready.pop_front() {
                return Some((Ok(line), state));
            }
            if state.has_ended {
                return None;
            }
            match state.bytes.next().await {
                Some(Ok(chunk)) => state.add(chunk.as_ref()),
                Some(Err(err)) => {
                    state.has_ended = true;
                    return Some((Err(err), state));
                }
                None => {
                    state.has_ended = true;
                    state.finish_line();
                }
            }
        }
    })
}

struct State<S> {
    bytes: S,
    /// Text before each line.
    prefix: String,
    /// Start of a line whose end has not arrived.
    partial: Vec<u8>,
    ready: VecDeque<Vec<u8>>,
    has_ended: bool,
}

impl<S> State<S> {
    fn add(&mut self, chunk: &[u8]) {
        for byte in chunk {
            match byte {
                b'\n' if self.partial.is_empty() => self.push_line(),
                b'\n' => self.finish_line(),
                byte => self.partial.push(*byte),
            }
            if self.partial.len() >= MAX_LINE_BYTES {
                self.finish_line();
            }
        }
    }

    fn finish_line(&mut self) {
        if !self.partial.is_empty() {
            self.push_line();
        }
    }

    fn push_line(&mut self) {
        let mut line = self.prefix.clone().into_bytes();
        line.append(&mut self.partial);
        line.push(b'\n');
        self.ready.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_complete_whatever_the_chunks_are() {
        let chunks = ["a\nb", "c\n", "\n", "d"].map(|text| anyhow::Ok(text.as_bytes()));
        let lines = prefixed_lines("guide-x".to_owned(), futures::stream::iter(chunks));
        let lines: Vec<String> = lines
            .map(|line| String::from_utf8(line.unwrap()).unwrap())
            .collect()
            .await;
        assert_eq!(
            lines,
            ["[guide-x] a\n", "[guide-x] bc\n", "[guide-x] \n", "[guide-x] d\n"]
        );
    }

    #[tokio::test]
    async fn long_lines_are_split_and_errors_end_the_log() {
        let long = vec![b'x'; MAX_LINE_BYTES + 1];
        let chunks = [Ok(long), Err(anyhow::anyhow!("interrupted")), Ok(b"y\n".to_vec())];
        let lines = prefixed_lines("n".to_owned(), futures::stream::iter(chunks));
        let lines: Vec<Result<usize, String>> = lines
            .map(|line| line.map(|line| line.len()).map_err(|err| err.to_string()))
            .collect()
            .await;
        assert_eq!(lines, [Ok(MAX_LINE_BYTES + 5), Err("interrupted".to_owned())]);
    }
}
