//! Time to load a model's weights from disk to memory, and to download them from the hub.

use std::fmt;

use crate::predict::{Basis, Interval};
use rooflet_base::units::Bytes;

/// Bytes per second of a Mac's disk without measurement. Published figures for model loading are 3
/// to 7 GB/s; the median is their geometric mean.
const NOMINAL_READ: Interval = Interval {
    p10: 3e9,
    p50: 4.6e9,
    p90: 7e9,
};

/// Bytes per second of a download without measurement: the geometric mean of 100 Mbit/s and 1
/// Gbit/s, the minimum speed of Ethernet ports in Macs.
const NOMINAL_DOWNLOAD: f64 = 40e6;

/// Disk of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk {
    /// Bytes per second.
    read: Interval,
    pub basis: Basis,
}

impl Disk {
    /// Creates a disk with its measured read speed in bytes per second, or with the nominal speed.
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

    /// Returns the seconds to read `bytes`.
    pub fn seconds(&self, bytes: Bytes) -> Interval {
        self.read.recip().scale(bytes.0 as f64)
    }
}

/// Weights to read from disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightRead {
    pub bytes: Bytes,
    pub seconds: f64,
    pub basis: Basis,
}

impl WeightRead {
    pub fn new(bytes: Bytes, disk: &Disk) -> Self {
        Self {
            bytes,
            seconds: disk.seconds(bytes).p50,
            basis: disk.basis,
        }
    }
}

/// Network connection of a machine to the hub.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    bytes_per_second: f64,
    basis: Basis,
}

impl Link {
    /// Creates a connection with its measured download speed in bytes per second, or with the
    /// nominal speed.
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

/// Missing files of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Download {
    pub bytes: Bytes,
    pub seconds: f64,
    pub basis: Basis,
}

impl Download {
    /// Returns `None` if no bytes are missing.
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
        write!(
            f,
            "{bytes}, in about {seconds:.0} s ({})",
            link_basis_text(self.basis)
        )
    }
}

/// Steps until the weights are in memory: the download of missing files, and the read from disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadTime {
    pub download: Option<Download>,
    pub reading: WeightRead,
}

impl LoadTime {
    /// Returns the total seconds.
    pub fn seconds(&self) -> f64 {
        self.download.map_or(0.0, |download| download.seconds) + self.reading.seconds
    }

    /// Returns whether a part of the time is not measured on this machine.
    pub fn is_nominal(&self) -> bool {
        let download = self.download.map(|download| download.basis);
        download
            .into_iter()
            .chain([self.reading.basis])
            .any(|basis| basis == Basis::Nominal)
    }
}

impl fmt::Display for LoadTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(download) = self.download {
            write!(f, "downloads {download}, then ")?;
        }
        write!(f, "reads {}", self.reading)
    }
}

/// Describes the basis of a download speed, for messages.
pub fn link_basis_text(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured | Basis::Calibrated => "at the measured download speed of its node",
        Basis::Nominal => "at a nominal download speed, because that of its node is not measured",
    }
}

/// Describes the basis of a disk's speed, for messages.
pub fn disk_basis_text(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured | Basis::Calibrated => "at the measured speed of its disk",
        Basis::Nominal => "at the published speed of Mac disks, because this disk is not measured",
    }
}

impl fmt::Display for WeightRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, in about {:.1} s ({})",
            self.bytes,
            self.seconds,
            disk_basis_text(self.basis)
        )
    }
}
