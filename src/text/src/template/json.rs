//! Filter `tojson`: Python's `json.dumps`, as transformers provides it to templates.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::Formatter;

/// Serializes with the defaults of transformers:
/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let failed = |problem: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {problem}"));
    let mut style = Style {
        ensure_ascii: ensure_ascii.unwrap_or(false),
        indent,
        ..Style::default()
    };
    if let Some(separators) = separators {
        style.separators = <[String; 2]>::try_from(separators)
            .map(Some)
            .map_err(|_| failed("separators must be two strings".to_owned()))?;
    }
    let text = if sort_keys == Some(true) {
        // serde_json's map is sorted.
        serde_json::to_value(value).and_then(|sorted| dumps(&sorted, style))
    } else {
        dumps(value, style)
    };
    text.map_err(|err| failed(err.to_string()))
}

/// Arguments of `json.dumps`.
#[derive(Debug, Clone, Default)]
pub(super) struct Style {
    ensure_ascii: bool,
    indent: Option<usize>,
    /// Separators between items, and between a name and its value.
    separators: Option<[String; 2]>,
}

pub(super) fn dumps<T: Serialize>(value: &T, style: Style) -> Result<String, serde_json::Error> {
    let line = style.indent.is_some();
    let [item, name] = style
        .separators
        .unwrap_or_else(|| [if line { "," } else { ", " }, ": "].map(str::to_owned));
    let formatter = PythonFormatter {
        ensure_ascii: style.ensure_ascii,
        indent: style.indent,
        item,
        name,
        depth: 0,
        is_empty: true,
    };
    let mut out = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))?;
    Ok(String::from_utf8(out).expect("JSON text is UTF-8"))
}

struct PythonFormatter {
    ensure_ascii: bool,
    indent: Option<usize>,
    item: String,
    name: String,
    depth: usize,
    /// True if the innermost list or object is empty so far.
    is_empty: bool,
}

impl PythonFormatter {
    fn begin<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        writer.write_all(bracket)
    }

    fn end<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.break_line(writer)?;
        }
        self.is_empty = false;
        writer.write_all(bracket)
    }

    fn begin_item<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.is_empty = false;
        self.break_line(writer)
    }

    fn break_line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(width) => write!(writer, "\n{:1$}", "", width * self.depth),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonFormatter {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(writer, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.name.as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        if !self.ensure_ascii {
            return writer.write_all(text.as_bytes());
        }
        text.chars().try_for_each(|c| match c {
            ' '..='~' => write!(writer, "{c}"),
            _ => {
                let units = c.encode_utf16(&mut [0; 2]).to_vec();
                units.iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))
            }
        })
    }
}

/// Formats a number with the fewest digits that represent it, as Python does.
fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ -4..16 => {
            let plain = value.to_string();
            let point = if exponent >= 0 && !plain.contains('.') {
                ".0"
            } else {
                ""
            };
            format!("{plain}{point}")
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}
