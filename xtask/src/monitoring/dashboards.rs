//! Grafana dashboards: tables of panels, and their JSON.

use serde_json::{Value, json};

mod deployment;
mod fleet;
mod gateway;
mod mac;

pub(super) const DASHBOARDS: [Dashboard; 4] = [
    fleet::DASHBOARD,
    deployment::DASHBOARD,
    mac::DASHBOARD,
    gateway::DASHBOARD,
];

/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;
/// Start of the sentence in descriptions of panels that can be empty. The end-to-end test causes the
/// events and requires data in all panels.
const EMPTY_WITHOUT: &str = "Empty without";

/// Dashboard `manifests/monitoring/dashboards/NAME.json`.
pub(super) struct Dashboard {
    pub(super) name: &'static str,
    title: &'static str,
    description: &'static str,
    variables: &'static [Variable],
    rows: &'static [Row],
}

/// Choice at the top of a dashboard: the values of a label.
struct Variable {
    name: &'static str,
    label: &'static str,
    /// Query of Grafana's Prometheus data source.
    query: &'static str,
}

/// Panels under one title. The panels share the width.
struct Row {
    title: &'static str,
    panels: &'static [Panel],
}

struct Panel {
    title: &'static str,
    description: &'static str,
    kind: Kind,
    /// Identifier of a unit in Grafana.
    unit: &'static str,
    queries: &'static [Query],
}

struct Query {
    expression: &'static str,
    /// Name of a series, with labels in double braces.
    legend: &'static str,
    /// Event without which the query has no data; empty if it always has data.
    event: &'static str,
}

const fn panel(
    title: &'static str,
    description: &'static str,
    kind: Kind,
    unit: &'static str,
    queries: &'static [Query],
) -> Panel {
    Panel {
        title,
        description,
        kind,
        unit,
        queries,
    }
}

const fn query(expression: &'static str, legend: &'static str) -> Query {
    after("", expression, legend)
}

const fn after(event: &'static str, expression: &'static str, legend: &'static str) -> Query {
    Query {
        expression,
        legend,
        event,
    }
}

const fn variable(name: &'static str, label: &'static str, query: &'static str) -> Variable {
    Variable { name, label, query }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The latest value.
    Number,
    Lines,
    /// Lines that add up.
    Areas,
    /// One row per series, with its labels.
    Table,
}

impl Kind {
    fn height(self) -> u64 {
        match self {
            Self::Number => 4,
            Self::Lines | Self::Areas | Self::Table => 8,
        }
    }
}

impl Dashboard {
    /// Returns the queries of panels and variables, with the place of each one.
    #[cfg(test)]
    pub(super) fn queries(&self) -> Vec<(String, &'static str)> {
        let place = |title: &str| format!("{}: {title}", self.name);
        let variables = self.variables.iter();
        let variables = variables.map(|variable| (place(variable.name), variable.query));
        let panels = self.rows.iter().flat_map(|row| row.panels);
        let of_panel = |panel: &'static Panel| {
            let queries = panel.queries.iter();
            queries.map(move |query| (place(panel.title), query.expression))
        };
        variables.chain(panels.flat_map(of_panel)).collect()
    }

    pub(super) fn file(&self) -> String {
        let text = serde_json::to_string_pretty(&self.json()).expect("a JSON value has a text");
        format!("{text}\n")
    }

    fn json(&self) -> Value {
        let mut panels = Vec::new();
        let mut y = 0;
        for row in self.rows {
            let id = panels.len() + 1;
            panels.push(json!({
                "id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
                "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
            }));
            y += 1;
            let width = COLUMNS / row.panels.len() as u64;
            let height = row.panels.iter().map(|panel| panel.kind.height()).max();
            let height = height.unwrap_or_default();
            for (at, panel) in row.panels.iter().enumerate() {
                let position = json!({"h": height, "w": width, "x": width * at as u64, "y": y});
                panels.push(panel.json(panels.len() + 1, &position));
            }
            y += height;
        }
        let data_source = json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
            "hide": 0, "includeAll": false, "multi": false, "refresh": 1, "regex": "", "options": [],
            "current": {"text": "default", "value": "default"},
        });
        let variables = self.variables.iter().map(Variable::json);
        let variables: Vec<_> = [data_source].into_iter().chain(variables).collect();
        json!({
            "uid": format!("rooflet-{}", self.name),
            "title": self.title,
            "description": self.description,
            "tags": ["rooflet"],
            "schemaVersion": 39,
            "version": 1,
            "editable": true,
            "graphTooltip": 1,
            "fiscalYearStartMonth": 0,
            "timezone": "browser",
            "time": {"from": "now-1h", "to": "now"},
            "refresh": "30s",
            "templating": {"list": variables},
            "annotations": {"list": []},
            "links": [{
                "title": "rooflet", "type": "dashboards", "tags": ["rooflet"], "asDropdown": true,
                "icon": "external link", "includeVars": true, "keepTime": true, "targetBlank": false,
                "tooltip": "", "url": "",
            }],
            "panels": panels,
        })
    }
}

fn data_source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

impl Variable {
    fn json(&self) -> Value {
        json!({
            "name": self.name, "label": self.label, "type": "query", "datasource": data_source(),
            "query": {"query": self.query, "refId": "variable"}, "definition": self.query,
            "refresh": 2, "sort": 1, "hide": 0, "regex": "", "skipUrlSync": false, "options": [],
            "multi": true, "includeAll": true, "allValue": ".*",
            "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
        })
    }
}

impl Panel {
    /// Returns the description with the events that the queries need.
    fn full_description(&self) -> String {
        let mut events: Vec<_> = self.queries.iter().map(|query| query.event).collect();
        events.retain(|event| !event.is_empty());
        events.dedup();
        match events.as_slice() {
            [] => self.description.to_owned(),
            events => format!("{} {EMPTY_WITHOUT} {}.", self.description, events.join(" or ")),
        }
    }

    fn json(&self, id: usize, position: &Value) -> Value {
        let is_instant = matches!(self.kind, Kind::Number | Kind::Table);
        let targets = self.queries.iter().zip('A'..).map(|(query, letter)| {
            json!({
                "refId": letter.to_string(), "datasource": data_source(), "expr": query.expression,
                "legendFormat": query.legend, "instant": is_instant, "range": !is_instant,
                "format": if self.kind == Kind::Table { "table" } else { "time_series" },
            })
        });
        let lines = json!({
            "drawStyle": "line", "lineWidth": 1, "showPoints": "never", "spanNulls": false,
            "fillOpacity": if self.kind == Kind::Areas { 30 } else { 0 },
            "stacking": {"group": "A", "mode": if self.kind == Kind::Areas { "normal" } else { "none" }},
        });
        let reduce = json!({"calcs": ["lastNotNull"], "fields": "", "values": false});
        let (kind, custom, options) = match self.kind {
            Kind::Number => (
                "stat",
                json!({}),
                json!({
                    "reduceOptions": reduce, "colorMode": "none", "graphMode": "none", "justifyMode": "auto",
                    "orientation": "auto", "textMode": "auto", "wideLayout": true,
                    "showPercentChange": false, "percentChangeColorMode": "standard",
                }),
            ),
            Kind::Lines | Kind::Areas => (
                "timeseries",
                lines,
                json!({
                    "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": true},
                    "tooltip": {"mode": "multi", "sort": "desc"},
                }),
            ),
            Kind::Table => (
                "table",
                json!({}),
                json!({"frameIndex": 0, "showHeader": true, "cellHeight": "sm"}),
            ),
        };
        let no_time = json!([{
            "id": "organize",
            "options": {"excludeByName": {
                "Time": true, "Value": true, "__name__": true, "instance": true, "job": true,
            }},
        }]);
        json!({
            "id": id, "type": kind, "title": self.title, "description": self.full_description(),
            "gridPos": position, "datasource": data_source(), "targets": targets.collect::<Vec<_>>(),
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0, "custom": custom}, "overrides": []},
            "options": options,
            "transformations": if self.kind == Kind::Table { no_time } else { json!([]) },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn panels_have_own_ids_and_do_not_overlap() {
        for dashboard in DASHBOARDS {
            let json = dashboard.json();
            let panels = json["panels"].as_array().expect("a list of panels");
            let mut ids = BTreeSet::new();
            let mut cells = BTreeSet::new();
            for panel in panels {
                assert!(ids.insert(panel["id"].as_u64()), "{}: {panel}", dashboard.name);
                let number = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
                assert!(number("x") + number("w") <= COLUMNS, "{panel}");
                for x in number("x")..number("x") + number("w") {
                    for y in number("y")..number("y") + number("h") {
                        assert!(cells.insert((x, y)), "{}: {panel}", dashboard.name);
                    }
                }
            }
        }
    }
}
