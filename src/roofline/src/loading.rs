//! How long a model's weights take from a machine's disk into memory, and to that disk from their
//! hub.

use std::fmt;

use crate::predict::{Basis, Interval};
use rooflet_base::units::Bytes;

/// Bytes per second that the disks of Macs read, where nobody measured: 3 to 7 GB/s are published
/// for models read from them; the middle is their geometric mean.
const NOMINAL_READ: Interval = Interval {
    p10: 3e9,
    p50: 4.6e9,
    p90: 7e9,
};

/// Bytes per second that come from a hub, where nobody measured: of a line of 100 Mbit/s as of the
/// gigabit that the Ethernet port of every Mac with one has at least, the geometric mean.
const NOMINAL_DOWNLOAD: f64 = 40e6;

/// A machine's disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk {
    /// Bytes per second.
    read: Interval,
    pub basis: Basis,
}

impl Disk {
    /// `measured`: bytes per second that it was measured to read, if it was.
    pub fn new(measured: Option<Interval>) -> Self {
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
    pub fn seconds(&self, bytes: Bytes) -> Interval {
        self.read.recip().scale(bytes.0 as f64)
    }
}

/// Weights that have to be read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    pub bytes: Bytes,
    pub seconds: f64,
    pub basis: Basis,
}

impl Reading {
    pub fn new(bytes: Bytes, disk: &Disk) -> Self {
        Self {
            bytes,
            seconds: disk.seconds(bytes).p50,
            basis: disk.basis,
        }
    }
}

/// A machine's way to the hub.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    bytes_per_second: f64,
    basis: Basis,
}

impl Link {
    /// `measured`: bytes per second that came in downloads of the machine, if there were any.
    pub fn new(measured: Option<f64>) -> Self {
        match measured.filter(|rate| *rate > 0.0) {
            Some(bytes_per_second) => Self {
                bytes_per_second,
                basis: Basis::Measured,
            },
            None => Self {
                bytes_per_second: NOMINAL_DOWNLOAD,
                basis: Basis::Nominal,
            },
        }
    }
}

/// A model's files that have to be downloaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Download {
    pub bytes: Bytes,
    pub seconds: f64,
    pub basis: Basis,
}

impl Download {
    /// `None` where nothing is missing.
    pub fn new(bytes: Bytes, link: &Link) -> Option<Self> {
        (bytes > Bytes::ZERO).then(|| Self {
            bytes,
            seconds: bytes.0 as f64 / link.bytes_per_second,
            basis: link.basis,
        })
    }
}

impl fmt::Display for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, seconds) = (self.bytes, self.seconds.ceil());
        write!(f, "{bytes}, in about {seconds:.0} s ({})", line_words(self.basis))
    }
}

/// What has to happen before the weights are in memory: the download, where files are missing, then
/// the reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    pub download: Option<Download>,
    pub reading: Reading,
}

impl Arrival {
    /// Of all of it.
    pub fn seconds(&self) -> f64 {
        self.download.map_or(0.0, |download| download.seconds) + self.reading.seconds
    }

    /// Part of it is not known for this machine.
    pub fn is_nominal(&self) -> bool {
        let download = self.download.map(|download| download.basis);
        download
            .into_iter()
            .chain([self.reading.basis])
            .any(|basis| basis == Basis::Nominal)
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(download) = self.download {
            write!(f, "downloads {download}, then ")?;
        }
        write!(f, "reads {}", self.reading)
    }
}

/// How the speed of a line is known.
pub fn line_words(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured | Basis::Calibrated => "as models came to its node lately",
        Basis::Nominal => "by a nominal line; none has come to its node yet",
    }
}

/// How the speed of a disk is known.
pub fn words(basis: Basis) -> &'static str {
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
