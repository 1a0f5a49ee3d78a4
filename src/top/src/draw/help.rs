//! Explanation of keys and columns.

use crate::details::Details;

const KEYS: [(&str, &str); 12] = [
    ("Tab, 1 2 3 4", "next table; Macs, Replicas, Deployments, Events"),
    (
        "arrows, j k",
        "select a row; left and right (h l) change the table",
    ),
    ("PgUp PgDn, g G", "scroll by a page; first and last row"),
    ("Enter", "details of the selected object"),
    ("Esc", "back; clear the filter"),
    ("/", "filter: rows that contain every word"),
    ("s S", "sort by the next or previous column"),
    ("r", "reverse the order"),
    ("Ctrl-L", "draw the screen again"),
    ("Ctrl-Z", "suspend; `fg` continues"),
    ("?", "this help"),
    ("q, Ctrl-C", "quit"),
];

const COLUMNS: [(&str, &str); 7] = [
    ("MEMORY", "reserved / allocatable memory of the Mac"),
    (
        "BANDWIDTH",
        "reserved / measured memory bandwidth; - if it was not measured",
    ),
    (
        "TOK/S PRED, MEAS",
        "decode tokens/s of one stream: predicted, measured with real requests",
    ),
    (
        "TTFT PRED, MEAS",
        "time to first token: predicted, measured with real requests",
    ),
    (
        "BASIS",
        "basis of the prediction: Measured, Calibrated or Nominal",
    ),
    (
        "RUN/WAIT",
        "running and waiting requests; agents report them every 10 s",
    ),
    ("DONE", "completed requests since the start of the worker"),
];

pub(super) fn help(width: usize) -> Details {
    let mut help = Details::with_title("Help", width);
    help.heading("Keys");
    for (name, text) in KEYS {
        help.add(name, text);
    }
    help.heading("Columns");
    for (name, text) in COLUMNS {
        help.add(name, text);
    }
    help.text("A figure that is not known is shown as -.", 0);
    help
}
