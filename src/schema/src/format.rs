//! `format` of a schema: known names and checks of values.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use regex::Regex;

use super::{names, types::Types};

/// Format that this server checks. Unknown formats cause a warning and are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Int32,
    Int64,
    Float,
    Double,
    BsonObjectId,
    Byte,
    Cidr,
    CreditCard,
    Date,
    DateTime,
    Duration,
    Email,
    HexColor,
    Hostname,
    Ipv4,
    Ipv6,
    Isbn,
    Isbn10,
    Isbn13,
    LongName,
    Mac,
    Password,
    RgbColor,
    ShortName,
    Ssn,
    Uri,
    Uuid,
    Uuid3,
    Uuid4,
    Uuid5,
}

const NUMBER_FORMATS: [(&str, Format); 4] = [
    ("int32", Format::Int32),
    ("int64", Format::Int64),
    ("float", Format::Float),
    ("double", Format::Double),
];

const TEXT_FORMATS: [(&str, Format); 26] = [
    ("bsonobjectid", Format::BsonObjectId),
    ("byte", Format::Byte),
    ("cidr", Format::Cidr),
    ("creditcard", Format::CreditCard),
    ("date", Format::Date),
    ("date-time", Format::DateTime),
    ("duration", Format::Duration),
    ("email", Format::Email),
    ("hexcolor", Format::HexColor),
    ("hostname", Format::Hostname),
    ("ipv4", Format::Ipv4),
    ("ipv6", Format::Ipv6),
    ("isbn", Format::Isbn),
    ("isbn10", Format::Isbn10),
    ("isbn13", Format::Isbn13),
    ("k8s-long-name", Format::LongName),
    ("k8s-short-name", Format::ShortName),
    ("mac", Format::Mac),
    ("password", Format::Password),
    ("rgbcolor", Format::RgbColor),
    ("ssn", Format::Ssn),
    ("uri", Format::Uri),
    ("uuid", Format::Uuid),
    ("uuid3", Format::Uuid3),
    ("uuid4", Format::Uuid4),
    ("uuid5", Format::Uuid5),
];

impl Format {
    /// Returns the format with this name if it applies to these types.
    pub(super) fn recognise(types: Types, name: &str) -> Option<Format> {
        match types {
            Types::INTEGER => match name {
                "int32" => Some(Self::Int32),
                "int64" => Some(Self::Int64),
                _ => None,
            },
            Types::NUMBER => match name {
                "float" => Some(Self::Float),
                "double" => Some(Self::Double),
                _ => None,
            },
            Types::OBJECT | Types::ARRAY | Types::BOOLEAN => None,
            _ => {
                let plain = |name: &str| name.replace('-', "");
                TEXT_FORMATS
                    .iter()
                    .find(|(known, _)| plain(known) == plain(name))
                    .map(|(_, format)| *format)
            }
        }
    }

    pub(super) fn name(self) -> &'static str {
        let named = NUMBER_FORMATS
            .iter()
            .chain(&TEXT_FORMATS)
            .find(|(_, format)| *format == self);
        named.map_or("", |(name, _)| name)
    }

    /// Returns true if a text has this format. Number formats accept every text.
    pub(super) fn accepts(self, text: &str) -> bool {
        match self {
            Self::Int32 | Self::Int64 | Self::Float | Self::Double | Self::Password => true,
            Self::BsonObjectId => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
            Self::Byte => decode_base64(text).is_some(),
            Self::Cidr => is_cidr(text),
            Self::CreditCard => is_credit_card(text),
            Self::Date => is_date(text),
            Self::DateTime => is_date_time(text),
            Self::Duration => parse_duration(text).is_some(),
            Self::Email => is_email(text),
            Self::HexColor => HEX_COLOR.is_match(text),
            Self::Hostname => is_hostname(text),
            Self::Ipv4 => is_ipv4(text),
            Self::Ipv6 => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
            Self::Isbn => is_isbn10(text) || is_isbn13(text),
            Self::Isbn10 => is_isbn10(text),
            Self::Isbn13 => is_isbn13(text),
            Self::LongName => names::dns_subdomain(text).is_empty(),
            Self::Mac => is_mac(text),
            Self::RgbColor => RGB_COLOR.is_match(text),
            Self::ShortName => names::dns_label(text).is_empty(),
            Self::Ssn => SSN.is_match(text),
            Self::Uri => is_uri(text),
            Self::Uuid => UUID.is_match(text),
            Self::Uuid3 => UUID.is_match(text) && uuid_version(text) == Some('3'),
            Self::Uuid4 => {
                UUID.is_match(text) && uuid_version(text) == Some('4') && uuid_variant_is_rfc(text)
            }
            Self::Uuid5 => {
                UUID.is_match(text) && uuid_version(text) == Some('5') && uuid_variant_is_rfc(text)
            }
        }
    }
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern compiles")
}

static HEX_COLOR: LazyLock<Regex> = LazyLock::new(|| regex(r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"));
static RGB_COLOR: LazyLock<Regex> = LazyLock::new(|| {
    let channel = r"\s*(0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])\s*";
    regex(&format!(r"^rgb\({channel},{channel},{channel}\)$"))
});
static SSN: LazyLock<Regex> = LazyLock::new(|| regex(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"));
static UUID: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"));
static CLOCK_TIME: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$"));
static DURATION_PARTS: LazyLock<Regex> = LazyLock::new(|| regex(r"([0-9]+)\s*([A-Za-zµ]+)"));
static CREDIT_CARD: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|(222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)",
        "[0-9]{12}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|",
        r"(?:2131|1800|35[0-9]{3})[0-9]{11}|6[27][0-9]{14})$"
    ))
});
static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|",
        r"([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
    ))
});

fn uuid_version(text: &str) -> Option<char> {
    text.chars().filter(|c| *c != '-').nth(12)
}

fn uuid_variant_is_rfc(text: &str) -> bool {
    text.chars()
        .filter(|c| *c != '-')
        .nth(16)
        .is_some_and(|c| "89abAB".contains(c))
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let Some((date, time)) = lower.split_once('t') else {
        return false;
    };
    let Some(parts) = CLOCK_TIME.captures(time) else {
        return false;
    };
    is_date(date) && &parts[1] <= "23" && &parts[2] <= "59" && &parts[3] <= "59"
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && HOSTNAME.is_match(text) && text.split('.').all(|label| label.len() <= 63)
}

/// Returns true for dotted decimal with optional leading zeros, as Kubernetes accepts it, and for
/// IPv6 with embedded IPv4.
fn is_ipv4(text: &str) -> bool {
    let decimal = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_digit())
            && part.trim_start_matches('0').len() <= 3
            && part.parse::<u64>().is_ok_and(|n| n <= 255)
    };
    let parts: Vec<&str> = text.split('.').collect();
    (parts.len() == 4 && parts.iter().all(|part| decimal(part)))
        || (text.contains('.') && text.parse::<Ipv6Addr>().is_ok())
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let Ok(bits) = bits.parse::<u8>() else {
        return false;
    };
    (is_ipv4(address) && !address.contains(':') && bits <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
        || (address.parse::<Ipv4Addr>().is_ok() && bits <= 32)
}

fn is_mac(text: &str) -> bool {
    let hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|b| b.is_ascii_hexdigit());
    let separated = |separator: char, len: usize, counts: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len()) && parts.iter().all(|part| hex(part, len))
    };
    separated(':', 2, &[6, 8, 20]) || separated('-', 2, &[6, 8, 20]) || separated('.', 4, &[3, 4, 10])
}

fn is_email(text: &str) -> bool {
    let address = match (text.find('<'), text.strip_suffix('>')) {
        (Some(open), Some(rest)) => &rest[open + 1..],
        _ => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else {
        return false;
    };
    let atom = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii())
    };
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    (quoted || local.split('.').all(atom)) && domain.split('.').all(atom)
}

/// Returns true for absolute URIs and absolute paths, like Go's `url.ParseRequestURI`.
fn is_uri(text: &str) -> bool {
    if text.is_empty() || text.chars().any(|c| c.is_control()) || !percent_escapes_are_whole(text) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let mut letters = scheme.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        && !rest.is_empty()
        && !rest.split('/').nth(2).is_some_and(|host| host.contains(' '))
}

fn percent_escapes_are_whole(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|rest| rest.len() >= 2 && rest.bytes().take(2).all(|b| b.is_ascii_hexdigit()))
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    CREDIT_CARD.is_match(&digits) && luhn(&digits)
}

fn luhn(digits: &str) -> bool {
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(index, digit)| {
            let digit = u32::from(digit - b'0');
            if index % 2 == 0 {
                digit
            } else {
                digit * 2 / 10 + digit * 2 % 10
            }
        })
        .sum();
    sum.is_multiple_of(10)
}

fn isbn_characters(text: &str) -> Vec<u8> {
    text.bytes()
        .filter(|b| !b.is_ascii_whitespace() && *b != b'-')
        .collect()
}

fn is_isbn10(text: &str) -> bool {
    let characters = isbn_characters(text);
    let [digits @ .., check] = characters.as_slice() else {
        return false;
    };
    if digits.len() != 9 || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let check = match check {
        b'X' => 10,
        digit if digit.is_ascii_digit() => u32::from(digit - b'0'),
        _ => return false,
    };
    let sum: u32 = (1..)
        .zip(digits)
        .map(|(weight, digit)| weight * u32::from(digit - b'0'))
        .sum();
    (sum + 10 * check).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let characters = isbn_characters(text);
    if characters.len() != 13 || !characters.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let weights = [1, 3].into_iter().cycle();
    let sum: u32 = weights
        .zip(&characters)
        .map(|(weight, digit)| weight * u32::from(digit - b'0'))
        .sum();
    sum.is_multiple_of(10)
}

pub(super) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Parses a Go duration (`1h30m`) or a number with a spelled unit (`22 ns`, `3 days`). Returns
/// nanoseconds.
pub(super) fn parse_duration(text: &str) -> Option<i64> {
    go_duration(text).or_else(|| spelled_duration(text))
}

fn go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total: f64 = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (amount, tail) = rest.split_at(digits);
        let unit_len = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        let unit = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += amount.parse::<f64>().ok()? * unit;
        rest = tail;
    }
    if total > i64::MAX as f64 {
        return None;
    }
    let nanos = total as i64;
    Some(if negative { -nanos } else { nanos })
}

fn spelled_duration(text: &str) -> Option<i64> {
    let mut total: i64 = 0;
    let mut found = false;
    for part in DURATION_PARTS.captures_iter(text) {
        let amount: i64 = part[1].parse().ok()?;
        let unit = part[2].to_lowercase();
        let starts = |words: &[&str]| words.contains(&unit.as_str());
        let nanos: i64 = if starts(&["ns", "nano", "nanosecond", "nanoseconds", "nanos"]) {
            1
        } else if starts(&["us", "µs", "micro", "microsecond", "microseconds", "micros"]) {
            1_000
        } else if starts(&["ms", "milli", "millisecond", "milliseconds", "millis"]) {
            1_000_000
        } else if starts(&["s", "sec", "secs", "second", "seconds"]) {
            1_000_000_000
        } else if starts(&["m", "min", "mins", "minute", "minutes"]) {
            60_000_000_000
        } else if starts(&["h", "hr", "hour", "hours"]) {
            3_600_000_000_000
        } else if starts(&["d", "day", "days"]) {
            86_400_000_000_000
        } else if starts(&["w", "wk", "week", "weeks"]) {
            604_800_000_000_000
        } else {
            continue;
        };
        total = total.checked_add(amount.checked_mul(nanos)?)?;
        found = true;
    }
    found.then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, good: &[&str], bad: &[&str]) {
        let format = Format::recognise(Types::STRING, name).unwrap();
        for text in good {
            assert!(format.accepts(text), "{name} should accept {text}");
        }
        for text in bad {
            assert!(!format.accepts(text), "{name} should reject {text}");
        }
    }

    #[test]
    fn checks_texts_by_format() {
        check(
            "date-time",
            &["2014-12-15T19:30:20.000Z", "2014-12-15t19:30:20+02:00"],
            &["2014-12-15", "x", "2014-13-15T19:30:20Z"],
        );
        check("date", &["2006-01-02"], &["2006-1-2", "2006-02-30"]);
        check(
            "duration",
            &["22 ns", "1h30m", "3 days", "-1.5s"],
            &["abc", "", "5 lightyears"],
        );
        check(
            "ipv4",
            &["10.0.0.1", "010.0.0.1"],
            &["10.0.0", "256.1.1.1", "::1"],
        );
        check("ipv6", &["::1", "fe80::1"], &["10.0.0.1"]);
        check("cidr", &["10.0.0.0/8", "fe80::/10"], &["10.0.0.0", "10.0.0.0/33"]);
        check("email", &["a@b.c", "A <a@b.c>"], &["a", "a@", "@b"]);
        check("uri", &["https://a/b", "/x"], &["a/b", "", "http://a b/"]);
        check(
            "uuid4",
            &["f47ac10b-58cc-4372-a567-0e02b2c3d479"],
            &["f47ac10b-58cc-3372-a567-0e02b2c3d479", "x"],
        );
        check("byte", &["aGk=", ""], &["a", "!!!!"]);
        check("hostname", &["example.com", "a-b"], &["-a", "a..b"]);
        check(
            "mac",
            &["01:02:03:04:ab:cd", "0123.4567.89ab"],
            &["01:02:03", "zz:02:03:04:ab:cd"],
        );
        check("isbn", &["0321751043", "978-0321751041"], &["0321751044"]);
        check("creditcard", &["4111-1111-1111-1111"], &["4111-1111-1111-1112"]);
        check("hexcolor", &["#fff", "FFFFFF"], &["#ffff"]);
        check("rgbcolor", &["rgb(0, 128,255)"], &["rgb(0,0,256)"]);
    }

    #[test]
    fn formats_apply_only_to_their_types() {
        assert_eq!(Format::recognise(Types::INTEGER, "int32"), Some(Format::Int32));
        assert_eq!(Format::recognise(Types::NUMBER, "int32"), None);
        assert_eq!(Format::recognise(Types::STRING, "colour"), None);
        assert_eq!(
            Format::recognise(Types::STRING, "datetime"),
            Some(Format::DateTime)
        );
    }
}
