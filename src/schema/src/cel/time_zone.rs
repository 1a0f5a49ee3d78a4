//! Fields of timestamps, in UTC or in the time zone of an optional argument.

use jiff::{Timestamp, Zoned, tz::TimeZone};
use kube_cel::cel::{
    Context, ExecutionError, ResolveResult, Value as Cel,
    extractors::{Arguments, This},
};

/// Time of a rule: a timestamp of the `cel` crate.
type Time = chrono::DateTime<chrono::FixedOffset>;

/// Registers the functions, which replace those of the crate: these accept no time zone.
pub(super) fn register(context: &mut Context<'static>) {
    add(context, "getFullYear", |at| at.year().into());
    add(context, "getMonth", |at| i64::from(at.month()) - 1);
    add(context, "getDate", |at| at.day().into());
    add(context, "getDayOfMonth", |at| i64::from(at.day()) - 1);
    add(context, "getDayOfYear", |at| i64::from(at.day_of_year()) - 1);
    add(context, "getDayOfWeek", |at| {
        at.weekday().to_sunday_zero_offset().into()
    });
    add(context, "getHours", |at| at.hour().into());
    add(context, "getMinutes", |at| at.minute().into());
    add(context, "getSeconds", |at| at.second().into());
    add(context, "getMilliseconds", |at| at.millisecond().into());
}

fn add(context: &mut Context<'static>, name: &'static str, field: fn(&Zoned) -> i64) {
    let function = move |This(value): This<Cel>, Arguments(args): Arguments| -> ResolveResult {
        match (&value, &args[..]) {
            (Cel::Timestamp(time), []) => Ok(Cel::Int(field(&zoned(time, TimeZone::UTC)?))),
            (Cel::Timestamp(time), [Cel::String(zone)]) => {
                let zone = parse(zone).ok_or_else(|| {
                    ExecutionError::function_error(name, format!("unknown time zone {zone}"))
                })?;
                Ok(Cel::Int(field(&zoned(time, zone)?)))
            }
            // Durations have hours, minutes, seconds and milliseconds, without a time zone.
            (Cel::Duration(duration), []) => match name {
                "getHours" => Ok(Cel::Int(duration.num_hours())),
                "getMinutes" => Ok(Cel::Int(duration.num_minutes())),
                "getSeconds" => Ok(Cel::Int(duration.num_seconds())),
                "getMilliseconds" => Ok(Cel::Int(duration.num_milliseconds())),
                _ => Err(ExecutionError::NoSuchOverload),
            },
            _ => Err(ExecutionError::NoSuchOverload),
        }
    };
    context.add_function(name, function);
}

fn zoned(time: &Time, zone: TimeZone) -> Result<Zoned, ExecutionError> {
    let nanoseconds = i32::try_from(time.timestamp_subsec_nanos()).unwrap_or_default();
    let at = Timestamp::new(time.timestamp(), nanoseconds)
        .map_err(|err| ExecutionError::function_error("timestamp", err.to_string()))?;
    Ok(at.to_zoned(zone))
}

/// Parses an IANA name, or an offset such as `+02:00` or `02:00`.
fn parse(text: &str) -> Option<TimeZone> {
    let Some((hours, minutes)) = text.split_once(':') else {
        return match text {
            "" | "UTC" | "Local" => Some(TimeZone::UTC),
            name => TimeZone::get(name).ok(),
        };
    };
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    if !(-23..=23).contains(&hours) || !(0..=59).contains(&minutes) {
        return None;
    }
    let minutes = match text.starts_with('-') {
        true => -minutes,
        false => minutes,
    };
    let offset = jiff::tz::Offset::from_seconds(3600 * hours + 60 * minutes).ok()?;
    Some(TimeZone::fixed(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts from the IANA database: Berlin is at UTC+1 in winter and at UTC+2 in summer.
    #[test]
    fn time_zones_are_names_and_offsets() {
        let hour = |zone: &str| {
            let noon: Time = "2026-07-21T12:00:00Z".parse().expect("a time");
            parse(zone).map(|zone| zoned(&noon, zone).expect("in range").hour())
        };
        for (zone, expect) in [
            ("UTC", Some(12)),
            ("Europe/Berlin", Some(14)),
            ("-05:30", Some(6)),
            ("+02:00", Some(14)),
            ("02:00", Some(14)),
            ("Mars/Base", None),
            ("99:00", None),
            ("a:b", None),
        ] {
            assert_eq!(hour(zone), expect, "{zone}");
        }
    }
}
