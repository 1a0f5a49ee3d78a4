//! Selection of log lines by their time.

use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;

use super::lines::{lines, prefix_len};

/// Start of the printed lines: a line is printed if its time is not before this time. A line without a
/// time belongs to the line before it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Since(pub(super) Option<Timestamp>);

impl Since {
    /// Removes older lines from a log whose items are complete lines.
    pub(super) fn filter<'a>(
        self,
        lines: BoxStream<'a, anyhow::Result<Vec<u8>>>,
    ) -> BoxStream<'a, anyhow::Result<Vec<u8>>> {
        let Some(since) = self.0 else { return lines };
        lines
            .scan(false, move |is_new, line| {
                if let Ok(line) = &line {
                    *is_new = time_of(line).map_or(*is_new, |time| time >= since);
                }
                let kept = (line.is_err() || *is_new).then_some(line);
                futures::future::ready(Some(kept))
            })
            .filter_map(futures::future::ready)
            .boxed()
    }

    /// Removes older lines from the bytes of a log.
    pub(super) fn filter_bytes<'a, B: AsRef<[u8]> + Send + Unpin + 'a>(
        self,
        bytes: BoxStream<'a, anyhow::Result<B>>,
    ) -> BoxStream<'a, anyhow::Result<Vec<u8>>> {
        match self.0 {
            Some(_) => self.filter(lines(bytes).boxed()),
            None => bytes
                .map(|chunk| chunk.map(|chunk| chunk.as_ref().to_vec()))
                .boxed(),
        }
    }
}

/// Returns the time at the beginning of a log line, as text or JSON.
fn time_of(line: &[u8]) -> Option<Timestamp> {
    let line = line.get(prefix_len(line)..)?;
    let line = line.strip_prefix(b"{\"timestamp\":\"").unwrap_or(line);
    let end = line
        .iter()
        .position(|byte| matches!(byte, b' ' | b'"'))
        .unwrap_or(line.len());
    std::str::from_utf8(&line[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_time_first() {
        let expect = "2026-11-27T08:00:00.123456Z".parse::<Timestamp>().ok();
        for line in [
            "2026-11-27T08:00:00.123456Z  INFO request finished",
            "[mini-1] 2026-11-27T08:00:00.123456Z  INFO request finished",
            "{\"timestamp\":\"2026-11-27T08:00:00.123456Z\",\"level\":\"INFO\"}",
        ] {
            assert_eq!(time_of(line.as_bytes()), expect, "{line}");
        }
        for line in ["", "  at frame 3", "[mini-1] ", "2026 was a year", "{}"] {
            assert_eq!(time_of(line.as_bytes()), None, "{line}");
        }
    }

    #[tokio::test]
    async fn older_lines_and_their_continuations_are_removed() {
        let since = Since("2026-11-27T08:00:00Z".parse().ok());
        let text =
            "2026-11-27T07:59:59Z old\n  of the old line\n2026-11-27T08:00:00Z new\n  of the new line\n";
        let chunks = text.as_bytes().chunks(7).map(|chunk| anyhow::Ok(chunk.to_vec()));
        let kept: Vec<u8> = since
            .filter_bytes(futures::stream::iter(chunks).boxed())
            .map(Result::unwrap)
            .concat()
            .await;
        assert_eq!(
            String::from_utf8(kept).unwrap(),
            "2026-11-27T08:00:00Z new\n  of the new line\n"
        );
    }
}
