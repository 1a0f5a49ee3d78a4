//! Dimension and role of each kind of figure.

use rooflet_api::v1alpha1::FigureKind;

use super::stated::Measure;

/// Classification of figures, which only this crate needs.
pub(crate) trait FigureClass {
    /// Returns the dimension of the figure, such as seconds or bytes.
    fn measure(self) -> Measure;
    /// Returns true if figures of this kind are identified only by their name.
    fn is_general(&self) -> bool;
    /// Returns true if the figure is a speed or time of the engine.
    fn is_performance(&self) -> bool;
    /// Returns the spelling in YAML.
    fn spelling(self) -> String;
}

impl FigureClass for FigureKind {
    fn measure(self) -> Measure {
        match self {
            Self::DecodeTokensPerSecond
            | Self::ThroughputTokensPerSecond
            | Self::EndToEndTokensPerSecond
            | Self::MaximumDecodeTokensPerSecond
            | Self::PrefillTokensPerSecond => Measure::Rate,
            Self::PrefillSeconds
            | Self::TimeToFirstTokenSeconds
            | Self::TotalSeconds
            | Self::DecodeSeconds
            | Self::LoadSeconds
            | Self::DiskReadSeconds
            | Self::Seconds => Measure::Seconds,
            Self::Bandwidth | Self::BandwidthUsed | Self::KvBandwidth => Measure::Bandwidth,
            Self::WeightBytes
            | Self::StreamedBytes
            | Self::FileBytes
            | Self::KvBytes
            | Self::KvBytesPerToken
            | Self::MemoryBytes
            | Self::Bytes => Measure::Bytes,
            Self::Parameters | Self::ActiveParameters => Measure::Count,
            Self::ShareOfBandwidth
            | Self::ShareOfMaximum
            | Self::ShareOfMemory
            | Self::TimeReduction
            | Self::ThroughputGain => Measure::Share,
            Self::BitsPerWeight | Self::Ratio | Self::Other => Measure::Any,
        }
    }

    fn is_general(&self) -> bool {
        matches!(self, Self::Ratio | Self::Seconds | Self::Bytes | Self::Other)
    }

    fn is_performance(&self) -> bool {
        matches!(
            self,
            Self::DecodeTokensPerSecond
                | Self::ThroughputTokensPerSecond
                | Self::EndToEndTokensPerSecond
                | Self::PrefillTokensPerSecond
                | Self::PrefillSeconds
                | Self::TimeToFirstTokenSeconds
        )
    }

    fn spelling(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(text)) => text,
            _ => format!("{self:?}"),
        }
    }
}
