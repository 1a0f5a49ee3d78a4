//! Prerequisites of a build of rooflet. Every prerequisite is evaluated from the output of one
//! shell line, so that tests can use recorded outputs. All problems appear in one list.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};

use crate::console;

/// Free disk space that a build needs, in KiB.
const DISK_KIB: u64 = 5 * 1024 * 1024;

/// Oldest versions, as MLX requires them.
const MACOS: &[u32] = &[14];
const MACOS_SDK: &[u32] = &[14];
const CMAKE: &[u32] = &[3, 25];
/// Oldest glibc that the wheel of MLX runs with.
const GLIBC: &[u32] = &[2, 35];
/// First SDK that compiles kernels for the matrix units of an M5.
pub(super) const MATRIX_UNITS_SDK: &[u32] = &[26, 2];

/// Result for one prerequisite: what was found, or the problem with its remedy.
type Finding = Result<String, String>;

pub(super) struct Prerequisite {
    name: &'static str,
    /// Shell line whose output is evaluated.
    shell_line: &'static str,
    /// Evaluates the line's standard output, or `None` if the line failed.
    evaluate: fn(Option<&str>) -> Finding,
}

pub(super) const MACOS_BUILD: &[Prerequisite] = &[
    Prerequisite {
        name: "macOS",
        shell_line: "sw_vers -productVersion",
        evaluate: |found| at_least(found, MACOS, "update macOS: MLX needs 14 or later"),
    },
    Prerequisite {
        name: "processor",
        shell_line: "sysctl -n hw.optional.arm64",
        evaluate: |found| match found {
            Some("1") => Ok("Apple silicon".into()),
            _ => Err(
                "this Mac has an Intel processor, which MLX does not support; a control plane \
                      needs no MLX: cargo build --no-default-features"
                    .into(),
            ),
        },
    },
    Prerequisite {
        name: "Rust",
        shell_line: "rustc -vV",
        evaluate: rust,
    },
    Prerequisite {
        name: "Xcode",
        shell_line: "xcode-select -p",
        evaluate: xcode,
    },
    Prerequisite {
        name: "macOS SDK",
        shell_line: "xcrun --sdk macosx --show-sdk-version",
        evaluate: sdk,
    },
    Prerequisite {
        name: "Metal compiler",
        // `xcrun --find` is not enough: Xcode 26 contains a stub.
        shell_line: "xcrun -sdk macosx metal --version",
        evaluate: |found| {
            let missing = "no Metal compiler. With Xcode 26 or later, run \
                           `xcodebuild -downloadComponent MetalToolchain`; open Xcode once to accept its licence";
            first_line(found).ok_or_else(|| missing.into())
        },
    },
    Prerequisite {
        name: "CMake",
        shell_line: "cmake --version",
        evaluate: |found| {
            let version = found.and_then(|found| found.trim().strip_prefix("cmake version "));
            at_least(version, CMAKE, "install CMake 3.25 or later: brew install cmake")
        },
    },
    Prerequisite {
        name: "CMake's architecture",
        shell_line: "file -bL \"$(command -v cmake)\"",
        evaluate: cmake_architecture,
    },
    Prerequisite {
        name: "disk space",
        shell_line: "df -Pk .",
        evaluate: disk,
    },
];

pub(super) const LINUX_MLX: &[Prerequisite] = &[
    Prerequisite {
        name: "glibc",
        shell_line: "getconf GNU_LIBC_VERSION",
        evaluate: |found| {
            let version = found.and_then(|found| found.trim().strip_prefix("glibc "));
            at_least(
                version,
                GLIBC,
                "use a distribution with glibc 2.35 or later, such as Ubuntu 22.04",
            )
        },
    },
    Prerequisite {
        name: "C++ compiler",
        shell_line: "\"${CXX:-c++}\" --version",
        evaluate: |found| {
            let missing = "no C++ compiler: apt install g++ (or set CXX)";
            first_line(found).ok_or_else(|| missing.into())
        },
    },
    Prerequisite {
        name: "ar",
        shell_line: "ar --version",
        evaluate: |found| first_line(found).ok_or_else(|| "no `ar`: apt install binutils".into()),
    },
    Prerequisite {
        name: "Python with pip",
        shell_line: "python3 -m pip --version",
        evaluate: |found| {
            let missing = "no `python3` with pip, which downloads MLX: apt install python3 python3-pip";
            first_line(found).ok_or_else(|| missing.into())
        },
    },
    Prerequisite {
        name: "disk space",
        shell_line: "df -Pk .",
        evaluate: disk,
    },
];

/// Fails with the list of all prerequisites if one of them is not met.
pub(super) fn check(prerequisites: &[Prerequisite]) -> Result<()> {
    let root = console::root();
    let findings = evaluate_all(prerequisites, |shell_line| output(&root, shell_line));
    match findings.iter().any(|(_, finding)| finding.is_err()) {
        true => bail!("prerequisites are missing:\n{}", list(&findings)),
        false => Ok(()),
    }
}

fn output(dir: &Path, shell_line: &str) -> Option<String> {
    console::output(Command::new("sh").current_dir(dir).args(["-c", shell_line])).ok()
}

fn evaluate_all(
    prerequisites: &[Prerequisite],
    run: impl Fn(&str) -> Option<String>,
) -> Vec<(&'static str, Finding)> {
    let evaluate = |prerequisite: &Prerequisite| {
        let output = run(prerequisite.shell_line);
        (
            prerequisite.name,
            (prerequisite.evaluate)(output.as_deref().map(str::trim)),
        )
    };
    prerequisites.iter().map(evaluate).collect()
}

fn list(findings: &[(&'static str, Finding)]) -> String {
    let line = |(name, finding): &(&str, Finding)| match finding {
        Ok(found) => format!("  ok       {name}: {found}"),
        Err(problem) => format!("  MISSING  {name}: {problem}"),
    };
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn first_line(found: Option<&str>) -> Option<String> {
    let line = found?.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// Returns the numbers of a version, such as `[3, 31, 5]` of `3.31.5-rc1`.
pub(super) fn numbers(version: &str) -> Vec<u32> {
    let word = version.split_whitespace().next().unwrap_or_default();
    let number = |part: &str| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    word.split('.').map_while(number).collect()
}

fn at_least(version: Option<&str>, oldest: &[u32], remedy: &str) -> Finding {
    let Some(version) = first_line(version) else {
        return Err(format!("not found: {remedy}"));
    };
    match numbers(&version).as_slice() >= oldest {
        true => Ok(version),
        false => Err(format!("{version} is too old: {remedy}")),
    }
}

fn rust(found: Option<&str>) -> Finding {
    let host = found.and_then(|found| found.lines().find_map(|line| line.strip_prefix("host: ")));
    match host {
        Some(host) if host.starts_with("aarch64-") => Ok(host.into()),
        Some(host) => Err(format!(
            "the toolchain is for {host} and runs in Rosetta, where MLX does not build: \
             rustup set default-host aarch64-apple-darwin && rustup toolchain install stable"
        )),
        None => Err("no `rustc`: install Rust from https://rustup.rs".into()),
    }
}

fn xcode(found: Option<&str>) -> Finding {
    match first_line(found) {
        None => Err("no Xcode: install it from the App Store".into()),
        Some(path) if path.contains("CommandLineTools") => Err(format!(
            "{path} is selected, which has no Metal compiler: install Xcode, then run \
             `sudo xcode-select --switch /Applications/Xcode.app`"
        )),
        Some(path) => Ok(path),
    }
}

fn sdk(found: Option<&str>) -> Finding {
    let version = at_least(found, MACOS_SDK, "install Xcode 15 or later")?;
    Ok(match numbers(&version).as_slice() >= MATRIX_UNITS_SDK {
        true => version,
        false => format!("{version}; the matrix units of an M5 need 26.2"),
    })
}

fn cmake_architecture(found: Option<&str>) -> Finding {
    match first_line(found) {
        None => Err("CMake was not found: brew install cmake".into()),
        Some(_) if found.is_some_and(|found| found.contains("arm64")) => Ok("arm64".into()),
        Some(kind) if kind.contains("Mach-O") => Err(
            "CMake is built for Intel only and would build MLX for Intel: install Homebrew in /opt/homebrew, \
             then `/opt/homebrew/bin/brew install cmake`"
                .into(),
        ),
        // pip installs a script.
        Some(kind) => Ok(format!("unknown ({kind})")),
    }
}

/// Reads the fourth column of `df -Pk`.
fn disk(found: Option<&str>) -> Finding {
    let free = found.and_then(|found| {
        found
            .lines()
            .nth(1)?
            .split_whitespace()
            .nth(3)?
            .parse::<u64>()
            .ok()
    });
    let gib = |kib: u64| format!("{:.1} GiB free", kib as f64 / (1024.0 * 1024.0));
    match free {
        Some(free) if free >= DISK_KIB => Ok(gib(free)),
        Some(free) => Err(format!("{}, a build needs {}", gib(free), gib(DISK_KIB))),
        None => Ok("unknown".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DF: &str = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/disk3s5 239362496 176000000 61000000 75% /System/Volumes/Data";

    /// Apple silicon with everything that a build needs.
    const READY: &[(&str, &str)] = &[
        ("macOS", "26.2"),
        ("processor", "1"),
        ("Rust", "rustc 1.94.0\nbinary: rustc\nhost: aarch64-apple-darwin"),
        ("Xcode", "/Applications/Xcode.app/Contents/Developer"),
        ("macOS SDK", "26.2"),
        ("Metal compiler", "Apple metal version 32023.850"),
        (
            "CMake",
            "cmake version 4.1.0\n\nCMake suite maintained by Kitware",
        ),
        ("CMake's architecture", "Mach-O 64-bit executable arm64"),
        ("disk space", DF),
    ];

    /// Returns the findings of a Mac whose outputs are those of `READY`, except for `changes`. The
    /// output `None` stands for a failed shell line.
    fn findings(changes: &[(&str, Option<&str>)]) -> Vec<(&'static str, Finding)> {
        evaluate_all(MACOS_BUILD, |shell_line| {
            let of = |prerequisite: &&Prerequisite| prerequisite.shell_line == shell_line;
            let name = MACOS_BUILD.iter().find(of).expect("a known shell line").name;
            let changed = changes.iter().find(|(changed, _)| *changed == name);
            let ready = || READY.iter().find(|(ready, _)| *ready == name);
            match changed {
                Some((_, answer)) => answer.map(str::to_owned),
                None => ready().map(|(_, answer)| (*answer).to_owned()),
            }
        })
    }

    fn problems(changes: &[(&str, Option<&str>)]) -> Vec<(&'static str, String)> {
        let findings = findings(changes).into_iter();
        findings
            .filter_map(|(name, finding)| Some((name, finding.err()?)))
            .collect()
    }

    #[test]
    fn accepts_mac_that_is_ready() {
        assert_eq!(problems(&[]), []);
    }

    #[test]
    fn each_problem_has_its_remedy() {
        let cases = [
            ("macOS", Some("13.7.2"), "update macOS"),
            ("processor", Some("0"), "--no-default-features"),
            ("processor", None, "--no-default-features"),
            ("Rust", Some("host: x86_64-apple-darwin"), "default-host aarch64"),
            ("Rust", None, "rustup.rs"),
            (
                "Xcode",
                Some("/Library/Developer/CommandLineTools"),
                "xcode-select --switch",
            ),
            ("Xcode", None, "App Store"),
            ("macOS SDK", Some("13.3"), "Xcode 15"),
            ("macOS SDK", None, "Xcode 15"),
            ("Metal compiler", None, "downloadComponent MetalToolchain"),
            ("CMake", Some("cmake version 3.24.4"), "brew install cmake"),
            ("CMake", None, "brew install cmake"),
            (
                "CMake's architecture",
                Some("Mach-O 64-bit executable x86_64"),
                "/opt/homebrew/bin/brew",
            ),
            (
                "disk space",
                Some(
                    "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/disk3s5 239362496 1 4194304 99% /",
                ),
                "4.0 GiB free, a build needs 5.0 GiB",
            ),
        ];
        for (name, answer, remedy) in cases {
            let problems = problems(&[(name, answer)]);
            let [(found, problem)] = problems.as_slice() else {
                panic!("{name} {answer:?}: {problems:?}");
            };
            assert_eq!(*found, name);
            assert!(problem.contains(remedy), "{problem}");
        }
    }

    #[test]
    fn all_problems_appear_in_one_list() {
        let findings = findings(&[
            ("CMake", None),
            ("CMake's architecture", None),
            ("Metal compiler", None),
        ]);
        let list = list(&findings);
        assert_eq!(list.matches("MISSING").count(), 3, "{list}");
        assert!(list.contains("  ok       Rust: aarch64-apple-darwin\n"), "{list}");
    }

    #[test]
    fn accepts_cmake_of_either_packaging() {
        let universal = "Mach-O universal binary with 2 architectures: [x86_64:Mach-O 64-bit executable x86_64] [arm64:Mach-O 64-bit executable arm64]";
        let script = "Python script text executable, ASCII text";
        for kind in [universal, script] {
            assert_eq!(problems(&[("CMake's architecture", Some(kind))]), [], "{kind}");
        }
    }

    #[test]
    fn old_sdk_names_the_matrix_units() {
        let found = sdk(Some("15.5"));
        assert_eq!(found, Ok("15.5; the matrix units of an M5 need 26.2".into()));
        assert_eq!(sdk(Some("26.2")), Ok("26.2".into()));
    }

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(numbers("3.31.5-rc1"), [3, 31, 5]);
        let glibc = |version| (LINUX_MLX[0].evaluate)(Some(version)).is_ok();
        assert!(glibc("glibc 2.35") && glibc("glibc 2.41") && !glibc("glibc 2.4"));
    }
}
