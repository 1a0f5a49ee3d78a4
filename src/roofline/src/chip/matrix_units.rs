//! Use of a GPU's matrix units by the engine. The module is pure.

use std::fmt;

use super::ChipVariant;

/// Oldest macOS on which MLX uses matrix units (`is_nax_available` of MLX 0.32).
const OLDEST_MACOS: (u32, u32) = (26, 2);

/// Use of the matrix units of a GPU that has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUnits {
    Used,
    /// macOS is older than the oldest version on which the engine uses them.
    SystemTooOld,
    /// This build of the engine has no kernels for them.
    NotBuilt,
}

impl MatrixUnits {
    /// Returns the use on a Mac with this chip. `None` if the chip has no matrix units.
    /// `operating_system` is a name such as `macOS 26.4.1`. `is_built` is true if the engine has
    /// kernels for matrix units.
    pub fn of(chip: &ChipVariant, operating_system: &str, is_built: bool) -> Option<Self> {
        if !chip.neural_accelerators {
            return None;
        }
        Some(match (version(operating_system), is_built) {
            (Some(version), _) if version < OLDEST_MACOS => Self::SystemTooOld,
            (_, false) => Self::NotBuilt,
            (_, true) => Self::Used,
        })
    }

    /// Returns the change that makes the engine use the matrix units. `None` if it uses them
    /// already.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Used => None,
            Self::SystemTooOld => {
                Some("update macOS to 26.2 or later, then build rooflet again after `cargo xtask setup`")
            }
            Self::NotBuilt => Some(
                "use the release for macOS 26, or build rooflet on this Mac with Xcode 26.2 or later \
                 after `cargo xtask setup`",
            ),
        }
    }
}

impl fmt::Display for MatrixUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Used => "the engine uses the GPU's matrix units",
            Self::SystemTooOld => {
                "the engine does not use the GPU's matrix units before macOS 26.2: prompts take about three times as long"
            }
            Self::NotBuilt => {
                "this build of the engine does not use the GPU's matrix units: prompts take about three times as long"
            }
        })
    }
}

fn version(operating_system: &str) -> Option<(u32, u32)> {
    let mut numbers = operating_system.strip_prefix("macOS ")?.split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next().and_then(|minor| minor.parse().ok()).unwrap_or(0);
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::find;

    #[test]
    fn use_depends_on_chip_system_and_build() {
        use MatrixUnits::{NotBuilt, SystemTooOld, Used};
        for (chip, system, is_built, expect) in [
            ("M5", "macOS 26.2", true, Some(Used)),
            ("M5 Pro", "macOS 27.0.1", true, Some(Used)),
            ("M5", "macOS 26.4", false, Some(NotBuilt)),
            ("M5", "macOS 26.1", true, Some(SystemTooOld)),
            ("M5", "macOS 26", false, Some(SystemTooOld)),
            ("M5", "macOS 15.7.2", false, Some(SystemTooOld)),
            // The system reports no version.
            ("M5", "macOS", true, Some(Used)),
            ("M4", "macOS 26.2", true, None),
            ("M1 Ultra", "macOS 14.0", false, None),
        ] {
            let chip = find(chip, Some(if chip == "M5 Pro" { 20 } else { 10 }), None)
                .or_else(|_| find(chip, None, None))
                .unwrap();
            assert_eq!(
                MatrixUnits::of(chip, system, is_built),
                expect,
                "{} {system} {is_built}",
                chip.name
            );
        }
    }

    #[test]
    fn only_used_units_need_no_remedy() {
        for units in [
            MatrixUnits::Used,
            MatrixUnits::SystemTooOld,
            MatrixUnits::NotBuilt,
        ] {
            assert_eq!(units.remedy().is_none(), units == MatrixUnits::Used, "{units}");
        }
    }
}
