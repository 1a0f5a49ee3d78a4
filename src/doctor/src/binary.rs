//! Checks of the binary: build, signature, and the file of Metal kernels.

use super::check::Check;
use super::system_command::{self, Answer};

pub(super) async fn checks() -> Vec<Check> {
    let mut checks = vec![build()];
    #[cfg(feature = "mlx")]
    checks.extend(metal::kernel_file());
    if cfg!(target_os = "macos")
        && let Ok(path) = std::env::current_exe()
    {
        let path = path.to_string_lossy();
        let details = system_command::run("/usr/bin/codesign", &["-dv", &path]).await;
        let attribute = ["-p", "com.apple.quarantine", &path];
        let quarantine = system_command::run("/usr/bin/xattr", &attribute).await;
        checks.extend([signature(details.as_ref()), quarantined(quarantine.as_ref())]);
    }
    checks
}

fn build() -> Check {
    let name = "build";
    let architecture = std::env::consts::ARCH;
    #[cfg(feature = "mlx")]
    let target = metal::target();
    #[cfg(not(feature = "mlx"))]
    let target = String::new();
    if cfg!(debug_assertions) {
        return Check::warn(
            name,
            format!("{architecture}, development profile{target}: rooflet's own code is slower"),
            "build with --release",
        );
    }
    Check::ok(name, format!("{architecture}, release profile{target}"))
}

#[cfg(feature = "mlx")]
mod metal {
    use super::Check;
    use rooflet_mlx::metallib::{self, KernelFile, MetalBuild, Place};

    /// Returns the oldest supported macOS and the SDK, with a leading comma. Empty for builds
    /// without Metal.
    pub(super) fn target() -> String {
        metallib::build().map_or_else(String::new, |build| {
            let sdk = build.sdk.map(|sdk| format!(" with SDK {sdk}"));
            format!(", for macOS {} and later{}", build.macos, sdk.unwrap_or_default())
        })
    }

    /// Returns no check for builds without Metal.
    pub(super) fn kernel_file() -> Option<Check> {
        Some(judge(metallib::build()?, metallib::selected()))
    }

    pub(super) fn judge(build: MetalBuild, file: Option<&KernelFile>) -> Check {
        let name = "Metal kernels";
        let Some(file) = file else {
            return Check::fail(
                name,
                "mlx.metallib was not found: models cannot run on the GPU",
                "copy mlx.metallib from the directory of the build to the directory of the binary",
            );
        };
        let place = match file.place {
            Place::BesideBinary => "beside the binary",
            Place::BuildDirectory => "in the directory of the build",
        };
        let finding = format!("mlx.metallib {place}, {}", file.size);
        if file.is_of_this_build == Some(false) {
            return Check::fail(
                name,
                format!("{finding}: it belongs to another build, whose kernels may be missing or wrong"),
                "copy mlx.metallib together with the binary",
            );
        }
        if !build.is_optimized {
            return Check::warn(
                name,
                format!("{finding}, MLX was built without optimisation: host code is several times slower"),
                "run `cargo clean -p mlx-sys`, and build again",
            );
        }
        Check::ok(name, finding)
    }
}

/// Judges the output of `codesign -dv`.
fn signature(details: Option<&Answer>) -> Check {
    let name = "signature";
    let Some(details) = details else {
        return Check::unknown(name, "codesign did not answer");
    };
    let has = |text| details.text.contains(text);
    if has("code object is not signed at all") {
        return Check::fail(
            name,
            "the binary is not signed: macOS ends it on Apple silicon",
            "sign it with `codesign --sign - --force BINARY`",
        );
    }
    if !details.succeeded {
        return Check::unknown(name, "codesign did not report the signature");
    }
    if has("Signature=adhoc") {
        return Check::ok(
            name,
            "ad hoc: after each new build, the application firewall asks again whether to allow connections",
        );
    }
    Check::ok(name, "signed with a certificate")
}

/// Judges the output of `xattr -p com.apple.quarantine`.
fn quarantined(attribute: Option<&Answer>) -> Check {
    let name = "quarantine";
    match attribute {
        Some(attribute) if attribute.succeeded => Check::warn(
            name,
            "the binary was downloaded, and macOS may refuse to start it without a window, as in launchd",
            "run `xattr -d com.apple.quarantine` on the binary and on mlx.metallib",
        ),
        Some(attribute) if attribute.text.contains("No such xattr") => Check::ok(name, "none"),
        Some(_) | None => Check::unknown(name, "xattr did not report the attribute"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    fn answer(succeeded: bool, text: &str) -> Answer {
        Answer {
            succeeded,
            text: text.to_owned(),
        }
    }

    /// Output for a linker-signed binary, from ocaml/dune issue 5650.
    const AD_HOC: &str = "Executable=/Users/me/foo\nIdentifier=foo\nFormat=Mach-O thin (arm64)\n\
        CodeDirectory v=20400 size=3324 flags=0x20002(adhoc,linker-signed) hashes=101+0 location=embedded\n\
        Signature=adhoc\nInfo.plist=not bound\nTeamIdentifier=not set\nSealed Resources=none\nInternal requirements=none\n";
    const CERTIFICATE: &str = "Executable=/usr/local/bin/rooflet\nIdentifier=dev.rooflet\nFormat=Mach-O thin (arm64)\n\
        CodeDirectory v=20500 size=3324 flags=0x10000(runtime) hashes=101+0 location=embedded\n\
        Signature size=8979\nTeamIdentifier=ABCDE12345\n";

    #[test]
    fn signatures_are_judged_without_their_names() {
        let unsigned = "foo: code object is not signed at all\n";
        for (details, status, finding) in [
            (Some(answer(true, AD_HOC)), Status::Ok, "ad hoc"),
            (Some(answer(true, CERTIFICATE)), Status::Ok, "certificate"),
            (Some(answer(false, unsigned)), Status::Fail, "not signed"),
            (
                Some(answer(false, "foo: No such file or directory")),
                Status::Unknown,
                "",
            ),
            (None, Status::Unknown, ""),
        ] {
            let check = signature(details.as_ref());
            assert_eq!(check.status, status, "{details:?}");
            assert!(check.finding.contains(finding), "{check:?}");
            assert!(
                !check.finding.contains("ABCDE12345") && !check.finding.contains("/U"),
                "{check:?}"
            );
        }
    }

    #[test]
    fn downloaded_binaries_are_found() {
        let downloaded = answer(true, "0083;5f3b1c2d;Safari;8A1B2C3D\n");
        let built = answer(
            false,
            "xattr: /usr/local/bin/rooflet: No such xattr: com.apple.quarantine\n",
        );
        assert_eq!(quarantined(Some(&downloaded)).status, Status::Warn);
        assert_eq!(quarantined(Some(&built)).status, Status::Ok);
        assert_eq!(
            quarantined(Some(&answer(false, "denied"))).status,
            Status::Unknown
        );
        assert_eq!(quarantined(None).status, Status::Unknown);
    }
}
