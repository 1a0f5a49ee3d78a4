//! How long a model's weights take from a machine's disk into memory.

use std::fmt;

use super::predict::{Basis, Interval};
use crate::units::Bytes;

/// Bytes per second that the disks of Macs read, where nobody measured: 3 to 7 GB/s are published for models read from
/// them; the middle is their geometric mean.
const NOMINAL_READ: Interval = Interval {
    p10: 3e9,
    p50: 4.6e9,
    p90: 7e9,
};

/// A machine's disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Disk {
    /// Bytes per second.
    read: Interval,
    pub(crate) basis: Basis,
}

impl Disk {
    /// `measured`: bytes per second that it was measured to read, if it was.
    pub(crate) fn new(measured: Option<Interval>) -> Self {
        match measured {
            Some(read) => Self {
                read,
                basis: Basis::Measured,
            },
            None => Self {
                read: NOMINAL_READ,
                basis: Basis::Nominal,
            },
        }
    }

    /// Seconds to read so many bytes.
    pub(crate) fn seconds(&self, bytes: Bytes) -> Interval {
        self.read.recip().scale(bytes.0 as f64)
    }
}

/// Weights that have to be read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    pub(crate) bytes: Bytes,
    pub(crate) seconds: f64,
    pub(crate) basis: Basis,
}

impl Reading {
    pub(crate) fn new(bytes: Bytes, disk: &Disk) -> Self {
        Self {
            bytes,
            seconds: disk.seconds(bytes).p50,
            basis: disk.basis,
        }
    }
}

/// How the speed of a disk is known.
pub(crate) fn words(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured | Basis::Calibrated => "as its disk was measured",
        Basis::Nominal => "as Macs' disks are published to read; its own was not measured",
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, in about {:.1} s ({})",
            self.bytes,
            self.seconds,
            words(self.basis)
        )
    }
}
