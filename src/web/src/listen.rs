//! Address of the page.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Value of `--web-listen`: an address, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebListen(pub Option<SocketAddr>);

/// Error: the text is neither an address nor `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be ADDR:PORT, such as 127.0.0.1:7490, or `off`")]
pub struct InvalidListen;

impl FromStr for WebListen {
    type Err = InvalidListen;

    fn from_str(text: &str) -> Result<Self, InvalidListen> {
        match text {
            "off" => Ok(Self(None)),
            text => text
                .parse()
                .map(|address| Self(Some(address)))
                .map_err(|_| InvalidListen),
        }
    }
}

impl fmt::Display for WebListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("off"),
        }
    }
}

/// Returns the URL under which this machine reaches a page that listens at `address`. Beyond
/// loopback, the page has HTTPS.
pub(crate) fn url(mut address: SocketAddr) -> String {
    let scheme = if address.ip().is_loopback() {
        "http"
    } else {
        "https"
    };
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    format!("{scheme}://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_an_address_or_off() {
        for text in ["off", "127.0.0.1:7490", "[::1]:0"] {
            assert_eq!(text.parse::<WebListen>().expect("valid").to_string(), text);
        }
        for text in ["", "on", "7490", "localhost:7490"] {
            assert_eq!(text.parse::<WebListen>(), Err(InvalidListen), "{text}");
        }
    }

    #[test]
    fn url_reaches_the_page_from_this_machine() {
        for (address, expect) in [
            ("127.0.0.1:7490", "http://127.0.0.1:7490"),
            ("[::1]:7490", "http://[::1]:7490"),
            ("0.0.0.0:7490", "https://127.0.0.1:7490"),
            ("[::]:7490", "https://127.0.0.1:7490"),
            ("192.0.2.7:7490", "https://192.0.2.7:7490"),
        ] {
            assert_eq!(url(address.parse().expect("an address")), expect);
        }
    }
}
