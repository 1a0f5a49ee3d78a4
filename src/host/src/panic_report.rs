//! Kernel panic reports of macOS: files `*.panic` in `/Library/Logs/DiagnosticReports` and in its
//! subdirectory `Retired`. A file contains a line of JSON about the report, followed by the report,
//! whose `panicString` is the kernel's text. The format is known from published reports; rooflet has
//! not read a file on a Mac yet.

use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use camino::Utf8Path;
use jiff::Timestamp;
use serde::Deserialize;

use rooflet_base::clock::since;

/// Maximum size of a report in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Subdirectory to which the system moves reports, such as after it has sent them to Apple.
const RETIRED: &str = "Retired";

/// Kernel panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PanicReport {
    pub at: Timestamp,
    /// Build of the system that panicked, such as `25E246`.
    pub os_build: String,
    /// The kernel's message, such as
    /// `"completeMemory() prepare count underflow" @IOGPUMemory.cpp:550`.
    pub message: String,
    pub cause: PanicCause,
    /// Time at which the system wrote the report, after the next start. `None` if unknown.
    pub written: Option<Timestamp>,
}

/// Part of the system that caused a panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PanicCause {
    /// The GPU's drivers: named in the panic message or in the backtrace.
    GpuDriver,
    /// The system did not respond for so long that its watchdog stopped it. On machines that serve
    /// models, the usual reason is exhausted memory (github.com/jundot/omlx issue 3065).
    Watchdog,
    Other,
}

/// First document of a file.
#[derive(Deserialize)]
struct Header {
    /// Time at which the system wrote the report, such as `2026-09-14 14:08:48.00 +0100`.
    timestamp: String,
}

/// Second document of a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    #[serde(alias = "macOSPanicString")]
    panic_string: String,
}

impl PanicReport {
    /// Parses a report. Returns `None` if the text is not a report of a panic, or has no time.
    pub(super) fn parse(file: &str) -> Option<Self> {
        let report = file
            .split_once('\n')
            .and_then(|(_, body)| serde_json::from_str::<Report>(body).ok())
            .or_else(|| serde_json::from_str(file).ok());
        let text = report.map_or_else(|| file.to_owned(), |report| report.panic_string);
        let message = message_of(&text)?;
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
            cause: PanicCause::of(message, &text),
            written: file.lines().next().and_then(written_at),
        })
    }

    /// Returns the time from the start of the system at `boot` to the report about its previous run.
    /// `None` if the report is about an earlier run, or was written before the start.
    pub fn delay_after(&self, boot: Timestamp) -> Option<Duration> {
        let written = self
            .written
            .filter(|written| self.at <= boot && boot <= *written)?;
        Some(since(written, boot))
    }
}

fn written_at(header: &str) -> Option<Timestamp> {
    let header: Header = serde_json::from_str(header).ok()?;
    Timestamp::strptime("%Y-%m-%d %H:%M:%S%.f %z", header.timestamp).ok()
}

fn message_of(text: &str) -> Option<&str> {
    let panic = text.lines().find(|line| line.starts_with("panic("))?;
    Some(panic.split_once("): ").map_or(panic, |(_, message)| message))
}

impl PanicCause {
    /// Returns the cause, from the message and the kernel extensions in the backtrace. The rest of
    /// the text lists all loaded kernel extensions, which always include those of the GPU.
    fn of(message: &str, text: &str) -> Self {
        let is_gpu = |line: &str| ["IOGPU", "AGX"].iter().any(|driver| line.contains(driver));
        let mut backtrace = text
            .lines()
            .map(str::trim)
            .skip_while(|line| !line.starts_with("Kernel Extensions in backtrace"))
            .skip(1)
            .take_while(|line| !line.is_empty() && !line.starts_with("last "))
            .filter(|line| !line.starts_with("dependency:"));
        if is_gpu(message) || backtrace.any(is_gpu) {
            Self::GpuDriver
        } else if message.contains("watchdog timeout") {
            Self::Watchdog
        } else {
            Self::Other
        }
    }
}

/// Result of a search for panic reports.
#[derive(Debug, Default)]
pub struct PanicReports {
    /// Panic reports, oldest first.
    pub read: Vec<PanicReport>,
    /// Reason why a report, or the directory, could not be read. Only administrators may read
    /// them.
    pub unreadable: Option<io::Error>,
}

/// Reads the panic reports since a time, also those that the system has moved to the subdirectory.
/// A missing directory counts as empty.
pub(super) fn read(dir: &Utf8Path, since: Timestamp) -> PanicReports {
    let mut found = PanicReports::default();
    for dir in [dir, &dir.join(RETIRED)] {
        if let Err(err) = read_directory(dir, since, &mut found.read) {
            found.unreadable = Some(err);
        }
    }
    found.read.sort_by_key(|report| report.at);
    found
}

/// Adds the reports in one directory. Returns the last error; the other reports count.
fn read_directory(dir: &Utf8Path, since: Timestamp, found: &mut Vec<PanicReport>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let since = SystemTime::from(since);
    let recent = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|kind| kind == "panic"))
        .filter_map(|entry| {
            let file = entry.metadata().ok()?;
            // The system writes a report when it starts after the panic.
            let written = file.modified().ok()?;
            (file.len() <= MAX_FILE_BYTES && written >= since).then_some((entry.path(), written))
        });
    let mut outcome = Ok(());
    for (path, written) in recent {
        match fs::read(path) {
            Ok(text) => {
                found.extend(
                    PanicReport::parse(&String::from_utf8_lossy(&text)).map(|report| PanicReport {
                        written: report.written.or_else(|| Timestamp::try_from(written).ok()),
                        ..report
                    }),
                )
            }
            Err(err) => outcome = Err(err),
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_testing::TempDir;

    /// Returns name and content of published reports (see `src/host/fixtures/README.md`). The names
    /// end in the build of the system.
    fn published(dir: &str) -> Vec<(String, String)> {
        let dir = format!("{}/fixtures/{dir}", env!("CARGO_MANIFEST_DIR"));
        let files = Utf8Path::new(&dir).read_dir_utf8().unwrap().map(Result::unwrap);
        let reports = files.filter_map(|file| {
            let name = file.file_name().strip_suffix(".panic")?.to_owned();
            Some((name, fs::read_to_string(file.path()).unwrap()))
        });
        reports.collect()
    }

    fn expected_cause(name: &str) -> PanicCause {
        match name.split_once('-').unwrap().0 {
            "gpu" => PanicCause::GpuDriver,
            "watchdog" | "userspace" => PanicCause::Watchdog,
            _ => PanicCause::Other,
        }
    }

    #[test]
    fn published_reports_are_attributed_to_the_driver_that_failed() {
        let reports = published("panics");
        assert_eq!(reports.len(), 12);
        for (name, file) in reports {
            let report = PanicReport::parse(&file).unwrap_or_else(|| panic!("{name} is not a report"));
            assert_eq!(report.cause, expected_cause(&name), "{name}: {}", report.message);
            assert!(
                name.ends_with(&format!("-{}", report.os_build)),
                "{name}: {report:?}"
            );
        }
    }

    /// The undated reports are too short to be parsed, but the cause can be determined.
    #[test]
    fn the_first_lines_of_a_report_are_enough_for_its_cause() {
        let reports = published("panics/undated");
        assert_eq!(reports.len(), 11);
        for (name, file) in reports {
            assert_eq!(PanicReport::parse(&file), None, "{name} has no time");
            let (_, body) = file.split_once('\n').unwrap();
            let text = serde_json::from_str::<Report>(body).unwrap().panic_string;
            let message = message_of(&text).unwrap();
            assert_eq!(
                PanicCause::of(message, &text),
                expected_cause(&name),
                "{name}: {message}"
            );
        }
    }

    /// The complete report of a memory controller's failure lists the GPU's drivers as loaded.
    #[test]
    fn cause_does_not_depend_on_loaded_extensions() {
        for (name, file) in published("panics") {
            if ["memory-controller-m2-pro-24E248", "pcie-m2-24F74"].contains(&name.as_str()) {
                assert!(file.contains("IOGPU"), "{name} lists the GPU's drivers");
                assert_eq!(
                    PanicReport::parse(&file).unwrap().cause,
                    PanicCause::Other,
                    "{name}"
                );
            }
        }
    }

    /// The only published report with its original header.
    #[test]
    fn a_report_names_the_time_at_which_it_was_written() {
        let reports = published("panics");
        let (_, file) = reports
            .iter()
            .find(|(name, _)| name == "watchdog-m5-25G83")
            .unwrap();
        let report = PanicReport::parse(file).unwrap();
        assert_eq!(report.at, "2026-09-14T13:08:27Z".parse().unwrap());
        assert_eq!(report.written, "2026-09-14T13:08:48Z".parse().ok());
    }

    /// Kernel text from github.com/jundot/omlx issues 248 and 862, shortened.
    const TEXT: &str = "panic(cpu 7 caller 0xfffffe004c88b4ac): \"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550\nDebugger message: panic\nMemory ID: 0xff\nOS release type: User\nOS version: 25D2128\nEpoch Time:        sec       usec\n  Boot    : 0x69b75d63 0x0001b85b\n  Sleep   : 0x00000000 0x00000000\n  Wake    : 0x00000000 0x00000000\n  Calendar: 0x69b7656c 0x0000b12e\n";

    fn expected() -> PanicReport {
        PanicReport {
            // 0x69b7656c.
            at: "2026-03-16T02:05:32Z".parse().unwrap(),
            os_build: "25D2128".to_owned(),
            message: "\"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550".to_owned(),
            cause: PanicCause::GpuDriver,
            written: None,
        }
    }

    /// Returns the reports of a directory without the times of their files.
    fn read_untimed(dir: &Utf8Path, since: &str) -> PanicReports {
        let mut found = read(dir, since.parse().unwrap());
        for report in &mut found.read {
            assert!(report.written.take().is_some(), "{report:?}");
        }
        found
    }

    const ALWAYS: &str = "1970-01-01T00:00:00Z";

    /// The kernel's time of the start after the panic in [`TEXT`], and of later starts.
    #[test]
    fn delay_of_a_report_is_that_after_the_next_start() {
        let report = |written: Option<&str>| PanicReport {
            written: written.map(|time| time.parse().unwrap()),
            ..expected()
        };
        let delay = |written, boot: &str| {
            let delay = report(written).delay_after(boot.parse().unwrap());
            delay.map(|delay| delay.as_secs())
        };
        let written = Some("2026-03-16T02:06:50Z");
        assert_eq!(delay(written, "2026-03-16T02:06:05Z"), Some(45));
        assert_eq!(delay(None, "2026-03-16T02:06:05Z"), None);
        // The system was restarted again after the report was written.
        assert_eq!(delay(written, "2026-03-17T08:00:00Z"), None);
        // A panic is never part of the run that reports it.
        assert_eq!(delay(written, "2026-03-16T01:00:00Z"), None);
    }

    #[test]
    fn both_forms_of_a_file_are_parsed() {
        let header = serde_json::json!({"bug_type": "210", "os_version": "macOS 26.3.1 (25D2128)"});
        let body = serde_json::json!({"product": "Mac16,10", "panicString": TEXT});
        let file = format!("{header}\n{}", serde_json::to_string_pretty(&body).unwrap());
        assert_eq!(PanicReport::parse(&file), Some(expected()));
        assert_eq!(PanicReport::parse(TEXT), Some(expected()));
        let other = TEXT.replace(
            "completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550",
            "a disk\" @disk.cpp:1",
        );
        assert_eq!(PanicReport::parse(&other).unwrap().cause, PanicCause::Other);
    }

    #[test]
    fn other_texts_are_ignored() {
        let undated = TEXT.replace("Calendar", "Kalender");
        for text in ["", "{}", "{}\n{}", "panic(", "a crash of some program", &undated] {
            assert_eq!(PanicReport::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_new_reports_in_the_directory_are_read() {
        let dir = TempDir::new();
        let path = dir.path();
        let none = read(&path.join("none"), Timestamp::UNIX_EPOCH);
        assert!(none.read.is_empty() && none.unreadable.is_none());
        fs::write(path.join("panic-full.panic"), TEXT).unwrap();
        fs::write(path.join("rooflet.ips"), TEXT).unwrap();
        fs::write(path.join("broken.panic"), "{").unwrap();
        assert_eq!(read_untimed(path, ALWAYS).read, [expected()]);
        assert_eq!(read_untimed(path, "2999-01-01T00:00:00Z").read, []);
    }

    #[test]
    fn retired_reports_are_read() {
        let dir = TempDir::new();
        let retired = dir.path().join("Retired");
        fs::create_dir(&retired).unwrap();
        fs::write(retired.join("panic-full.panic"), TEXT).unwrap();
        assert_eq!(read_untimed(dir.path(), ALWAYS).read, [expected()]);
        fs::create_dir(retired.join("other.panic")).unwrap();
        let found = read_untimed(dir.path(), ALWAYS);
        assert!(found.read == [expected()] && found.unreadable.is_some());
    }

    #[test]
    fn unreadable_reports_are_reported() {
        let dir = TempDir::new();
        let path = dir.path();
        fs::write(path.join("panic-full.panic"), TEXT).unwrap();
        assert!(read(path, Timestamp::UNIX_EPOCH).unreadable.is_none());
        // A directory cannot be read as a report; the other reports count.
        fs::create_dir(path.join("other.panic")).unwrap();
        let found = read_untimed(path, ALWAYS);
        assert_eq!(found.read, [expected()]);
        assert!(found.unreadable.is_some());
        assert!(
            read(&path.join("panic-full.panic"), Timestamp::UNIX_EPOCH)
                .unreadable
                .is_some()
        );
    }
}
