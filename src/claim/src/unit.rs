//! Units in published numbers: `GB/s`, `tok/s`, `ms`, `TFLOPS`, `32K`, `12B`.

use std::fmt;
use std::ops::{Div, Mul};

/// Dimension of a quantity, as powers of the base units. Tokens, layers and requests have no
/// dimension, because texts often omit them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) bytes: i32,
    pub(super) seconds: i32,
    pub(super) operations: i32,
    pub(super) joules: i32,
}

impl Dimension {
    pub(super) const NONE: Self = Self::of(0, 0, 0, 0);
    pub(super) const BYTES: Self = Self::of(1, 0, 0, 0);
    pub(super) const SECONDS: Self = Self::of(0, 1, 0, 0);
    pub(super) const PER_SECOND: Self = Self::of(0, -1, 0, 0);
    pub(super) const BYTES_PER_SECOND: Self = Self::of(1, -1, 0, 0);

    const fn of(bytes: i32, seconds: i32, operations: i32, joules: i32) -> Self {
        Self {
            bytes,
            seconds,
            operations,
            joules,
        }
    }

    pub(super) fn power(self, n: i32) -> Self {
        Self::of(
            self.bytes.saturating_mul(n),
            self.seconds.saturating_mul(n),
            self.operations.saturating_mul(n),
            self.joules.saturating_mul(n),
        )
    }
}

impl Mul for Dimension {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self::of(
            self.bytes.saturating_add(other.bytes),
            self.seconds.saturating_add(other.seconds),
            self.operations.saturating_add(other.operations),
            self.joules.saturating_add(other.joules),
        )
    }
}

impl Div for Dimension {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        self * other.power(-1)
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("B", self.bytes),
            ("s", self.seconds),
            ("FLOP", self.operations),
            ("J", self.joules),
        ];
        let mut written = false;
        for (name, power) in parts.into_iter().filter(|(_, power)| *power != 0) {
            if written {
                f.write_str("·")?;
            }
            written = true;
            match power {
                1 => f.write_str(name)?,
                power => write!(f, "{name}^{power}")?,
            }
        }
        if written {
            Ok(())
        } else {
            f.write_str("a bare number")
        }
    }
}

/// Meaning of a unit: its size in base units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unit {
    pub(super) scale: f64,
    pub(super) dimension: Dimension,
}

impl Unit {
    pub(super) const ONE: Self = Self::of(1.0, Dimension::NONE);

    const fn of(scale: f64, dimension: Dimension) -> Self {
        Self { scale, dimension }
    }
}

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;
const GIB: f64 = MIB * KIB;
const TIB: f64 = GIB * KIB;

/// Returns the meanings of a unit's name, most likely first. `attached`: the unit follows its
/// number without a space; `B` then means billion rather than bytes.
pub(super) fn meanings(name: &str, attached: bool) -> Option<Vec<Unit>> {
    let bytes = |scale| Unit::of(scale, Dimension::BYTES);
    let seconds = |scale| Unit::of(scale, Dimension::SECONDS);
    let rate = |scale| Unit::of(scale, Dimension::PER_SECOND);
    let count = |scale| Unit::of(scale, Dimension::NONE);
    let operations = |scale| Unit::of(scale, Dimension::of(0, 0, 1, 0));
    let speed = |scale| Unit::of(scale, Dimension::of(0, -1, 1, 0));
    let energy = |scale| Unit::of(scale, Dimension::of(0, 0, 0, 1));
    let power = |scale| Unit::of(scale, Dimension::of(0, -1, 0, 1));
    Some(match name {
        "B" if attached => vec![count(1e9), bytes(1.0)],
        "B" => vec![bytes(1.0), count(1e9)],
        "byte" | "bytes" | "Bytes" => vec![bytes(1.0)],
        "bit" | "bits" | "b" => vec![bytes(0.125)],
        "kB" | "KB" => vec![bytes(1e3), bytes(KIB)],
        "MB" => vec![bytes(1e6), bytes(MIB)],
        "GB" | "G" => vec![bytes(1e9), bytes(GIB)],
        "TB" => vec![bytes(1e12), bytes(TIB)],
        "KiB" | "Ki" => vec![bytes(KIB)],
        "MiB" | "Mi" => vec![bytes(MIB)],
        "GiB" | "Gi" => vec![bytes(GIB)],
        "TiB" | "Ti" => vec![bytes(TIB)],
        "Gbit" | "Gb" => vec![bytes(0.125e9)],
        "k" => vec![count(1e3), count(KIB)],
        "K" => vec![count(KIB), count(1e3)],
        "M" | "million" => vec![count(1e6)],
        "bn" | "billion" => vec![count(1e9)],
        "T" | "trillion" => vec![count(1e12)],
        // Memory transfers: 6400 MT/s.
        "MT" => vec![count(1e6)],
        "GT" => vec![count(1e9)],
        "s" | "sec" | "secs" | "second" | "seconds" => vec![seconds(1.0)],
        "ms" | "millisecond" | "milliseconds" => vec![seconds(1e-3)],
        "us" | "µs" | "μs" => vec![seconds(1e-6)],
        "ns" => vec![seconds(1e-9)],
        "min" | "mins" | "minute" | "minutes" => vec![seconds(60.0)],
        "h" | "hr" | "hour" | "hours" => vec![seconds(3600.0)],
        "tps" => vec![rate(1.0)],
        "Hz" => vec![rate(1.0)],
        "MHz" => vec![rate(1e6)],
        "GHz" => vec![rate(1e9)],
        "FLOP" | "FLOPs" | "flop" | "flops" | "ops" => vec![operations(1.0)],
        "MFLOP" | "MFLOPs" => vec![operations(1e6)],
        "GFLOP" | "GFLOPs" => vec![operations(1e9)],
        "TFLOP" | "TFLOPs" => vec![operations(1e12)],
        "FLOPS" => vec![speed(1.0)],
        "GFLOPS" => vec![speed(1e9)],
        "TFLOPS" | "TOPS" => vec![speed(1e12)],
        "J" => vec![energy(1.0)],
        "kJ" => vec![energy(1e3)],
        "Wh" => vec![energy(3600.0)],
        "kWh" => vec![energy(3.6e6)],
        "W" => vec![power(1.0)],
        "kW" => vec![power(1e3)],
        "%" => vec![count(0.01)],
        "x" | "×" => vec![count(1.0)],
        "t" | "tok" | "toks" | "token" | "tokens" | "req" | "request" | "requests" | "step" | "steps"
        | "pass" | "passes" | "layer" | "layers" | "head" | "heads" | "core" | "cores" | "weight"
        | "weights" | "param" | "params" | "parameter" | "parameters" | "element" | "elements" | "expert"
        | "experts" | "run" | "runs" | "machine" | "machines" | "stream" | "streams" | "user" | "users" => {
            vec![Unit::ONE]
        }
        _ => return None,
    })
}

/// Returns whether the unit counts bytes in powers of 1024: `GiB`, `MiB/s`.
pub(super) fn is_binary(unit: &str) -> bool {
    let first = unit.split(['/', ' ']).next().unwrap_or_default();
    matches!(first, "Ki" | "KiB" | "Mi" | "MiB" | "Gi" | "GiB" | "Ti" | "TiB")
}

/// Returns whether the unit counts bits.
pub(super) fn counts_bits(unit: &str) -> bool {
    let first = unit.split(['/', ' ']).next().unwrap_or_default();
    matches!(first, "bit" | "bits" | "b" | "Gbit" | "Gb")
}

/// Returns whether a word in a statement only describes a number.
pub(super) fn is_remark(word: &str) -> bool {
    matches!(
        word,
        "decode"
            | "prefill"
            | "throughput"
            | "faster"
            | "slower"
            | "more"
            | "less"
            | "lower"
            | "higher"
            | "total"
            | "generated"
            | "prompt"
            | "file"
            | "efficient"
            | "efficiency"
            | "speedup"
            | "improvement"
            | "spec"
            | "peak"
            | "theoretical"
            | "measured"
            | "overhead"
            | "saved"
            | "gain"
            | "reduction"
            | "latency"
            | "memory"
            | "bandwidth"
            | "max"
    )
}
