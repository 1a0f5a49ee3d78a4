//! The tables of the view.

use clap::ValueEnum;
use serde::Serialize;

/// Table of the view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub enum TableKind {
    #[default]
    #[value(alias = "mac", alias = "fleetnodes", alias = "fn", alias = "nodes")]
    Macs,
    #[value(alias = "replica", alias = "modelreplicas", alias = "mrep")]
    Replicas,
    #[value(alias = "deployment", alias = "modeldeployments", alias = "mdep")]
    Deployments,
    #[value(alias = "event", alias = "ev")]
    Events,
}

impl TableKind {
    /// All tables, in the order of their number keys.
    pub(crate) const ALL: [Self; 4] = [Self::Macs, Self::Replicas, Self::Deployments, Self::Events];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Macs => "Macs",
            Self::Replicas => "Replicas",
            Self::Deployments => "Deployments",
            Self::Events => "Events",
        }
    }

    /// Position in [`Self::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Returns the table `steps` after this one. The last table is followed by the first.
    pub(crate) const fn after(self, steps: usize) -> Self {
        Self::ALL[(self.index() + steps) % Self::ALL.len()]
    }
}
