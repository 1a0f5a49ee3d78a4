//! What macOS writes after a kernel panic: files `*.panic` in `/Library/Logs/DiagnosticReports`, a
//! line of JSON about the report and then the report, whose `panicString` is the text that the
//! kernel left. The format is known from published reports; no file of our own was ever there to
//! read.

use std::fs;
use std::io;
use std::time::SystemTime;

use camino::Utf8Path;
use jiff::Timestamp;
use serde::Deserialize;

/// Far larger than any of them, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// One kernel panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PanicReport {
    pub at: Timestamp,
    /// Of the system that panicked, such as `25E246`.
    pub os_build: String,
    /// What the kernel said, such as
    /// `"completeMemory() prepare count underflow" @IOGPUMemory.cpp:550`.
    pub message: String,
    /// The GPU's drivers took part.
    pub by_gpu: bool,
}

/// The second document of a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    #[serde(alias = "macOSPanicString")]
    panic_string: String,
}

impl PanicReport {
    /// `None`: the text is no report of a panic, or one without a time.
    pub(super) fn parse(file: &str) -> Option<Self> {
        let report = file
            .split_once('\n')
            .and_then(|(_, body)| serde_json::from_str::<Report>(body).ok())
            .or_else(|| serde_json::from_str(file).ok());
        let text = report.map_or_else(|| file.to_owned(), |report| report.panic_string);
        let panic = text.lines().find(|line| line.starts_with("panic("))?;
        let message = panic.split_once("): ").map_or(panic, |(_, message)| message);
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
            line.map(str::trim)
        };
        // Seconds since 1970, in hexadecimal, then microseconds.
        let seconds = field("Calendar:")?.split_whitespace().next()?;
        let seconds = i64::from_str_radix(seconds.strip_prefix("0x")?, 16).ok()?;
        Some(Self {
            at: Timestamp::from_second(seconds).ok()?,
            os_build: field("OS version:").unwrap_or_default().to_owned(),
            message: message.to_owned(),
            by_gpu: ["IOGPU", "AGX"].iter().any(|driver| text.contains(driver)),
        })
    }
}

/// What the system tells of the kernel's panics.
#[derive(Debug, Default)]
pub struct PanicReports {
    /// The oldest first.
    pub read: Vec<PanicReport>,
    /// Why some could not be read, or all: only administrators may.
    pub unreadable: Option<io::Error>,
}

/// The panics since then; none where there is no such directory.
pub(super) fn read(dir: &Utf8Path, since: Timestamp) -> PanicReports {
    let mut found = PanicReports::default();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) => {
            found.unreadable = Some(err).filter(|err| err.kind() != io::ErrorKind::NotFound);
            return found;
        }
    };
    let since = SystemTime::from(since);
    let recent = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|kind| kind == "panic"))
        .filter(|entry| {
            // It is written at the start after the panic.
            let metadata = entry.metadata();
            metadata.is_ok_and(|file| {
                file.len() <= MAX_FILE_BYTES && file.modified().is_ok_and(|written| written >= since)
            })
        });
    for entry in recent {
        match fs::read(entry.path()) {
            Ok(text) => found
                .read
                .extend(PanicReport::parse(&String::from_utf8_lossy(&text))),
            Err(err) => found.unreadable = Some(err),
        }
    }
    found.read.sort_by_key(|report| report.at);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    /// The kernel's text as people published it (github.com/jundot/omlx issues 248 and 862), cut.
    const TEXT: &str = "panic(cpu 7 caller 0xfffffe004c88b4ac): \"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550\nDebugger message: panic\nMemory ID: 0xff\nOS release type: User\nOS version: 25D2128\nEpoch Time:        sec       usec\n  Boot    : 0x69b75d63 0x0001b85b\n  Sleep   : 0x00000000 0x00000000\n  Wake    : 0x00000000 0x00000000\n  Calendar: 0x69b7656c 0x0000b12e\n";

    fn expected() -> PanicReport {
        PanicReport {
            // 0x69b7656c.
            at: "2026-03-16T02:05:32Z".parse().unwrap(),
            os_build: "25D2128".to_owned(),
            message: "\"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550".to_owned(),
            by_gpu: true,
        }
    }

    #[test]
    fn the_kernel_s_text_is_found_in_both_forms_of_a_file() {
        let header = serde_json::json!({"bug_type": "210", "os_version": "macOS 26.3.1 (25D2128)"});
        let body = serde_json::json!({"product": "Mac16,10", "panicString": TEXT});
        let file = format!("{header}\n{}", serde_json::to_string_pretty(&body).unwrap());
        assert_eq!(PanicReport::parse(&file), Some(expected()));
        assert_eq!(PanicReport::parse(TEXT), Some(expected()));
        let other = TEXT.replace(
            "completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550",
            "a disk\" @disk.cpp:1",
        );
        assert!(!PanicReport::parse(&other).unwrap().by_gpu);
    }

    #[test]
    fn what_is_no_report_of_a_panic_is_left_alone() {
        let undated = TEXT.replace("Calendar", "Kalender");
        for text in ["", "{}", "{}\n{}", "panic(", "a crash of some program", &undated] {
            assert_eq!(PanicReport::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_new_reports_in_the_directory_count() {
        let dir = TempDir::new();
        let path = dir.path();
        let none = read(&path.join("none"), Timestamp::UNIX_EPOCH);
        assert!(none.read.is_empty() && none.unreadable.is_none());
        fs::write(path.join("panic-full.panic"), TEXT).unwrap();
        fs::write(path.join("rooflet.ips"), TEXT).unwrap();
        fs::write(path.join("broken.panic"), "{").unwrap();
        assert_eq!(read(path, Timestamp::UNIX_EPOCH).read, [expected()]);
        assert_eq!(read(path, "2999-01-01T00:00:00Z".parse().unwrap()).read, []);
    }

    #[test]
    fn reports_that_cannot_be_read_are_not_none() {
        let dir = TempDir::new();
        let path = dir.path();
        fs::write(path.join("panic-full.panic"), TEXT).unwrap();
        assert!(read(path, Timestamp::UNIX_EPOCH).unreadable.is_none());
        // Nobody can read a directory as a report. The others count.
        fs::create_dir(path.join("other.panic")).unwrap();
        let found = read(path, Timestamp::UNIX_EPOCH);
        assert_eq!(found.read, [expected()]);
        assert!(found.unreadable.is_some());
        assert!(
            read(&path.join("panic-full.panic"), Timestamp::UNIX_EPOCH)
                .unreadable
                .is_some()
        );
    }
}
