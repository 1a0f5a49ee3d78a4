//! `rooflet top` and `rooflet status`: live view of the fleet in a terminal, and its summary.
//!
//! The core is pure: [`View`] computes rows from observed objects, a key changes the state of the
//! screen, and the view is drawn into a buffer of cells. The shell watches the API server and owns
//! the terminal.
//!
//! Invariants: no control character of an object reaches the terminal, and the terminal is restored
//! however the view ends.

mod age;
mod connection;
mod details;
mod draw;
#[cfg(test)]
mod fixture;
mod live;
mod objects;
mod printable;
mod reader;
mod scope;
mod screen;
mod status;
mod table;
mod table_kind;
mod terminal;
mod view;
mod watches;

pub use self::live::{ShowError, show};
pub use self::reader::read;
pub use self::status::FleetStatus;
pub use self::table_kind::TableKind;
pub use self::terminal::is_interactive;
pub use self::view::View;
