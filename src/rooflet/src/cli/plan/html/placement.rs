//! Placement map: memory and chip time of each node group by model. If there are many groups, each
//! row is a class of nodes.

use maud::Markup;

use super::colors::{Colors, OTHERS};
use crate::cli::ui::digits::number;
use crate::cli::ui::html::{Anchor, Drawing, clipped};
use rooflet_api::v1alpha1::{PlanClass, PlanReplica, PlanVerdict};
use rooflet_base::units::Bytes;

/// Maximum number of rows. More node groups are drawn by class.
const MAX_ROWS: usize = 20;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 190.0;
const BAR: f64 = 590.0;
const ROW: f64 = 50.0;
const TOP: f64 = 24.0;

/// Row: nodes that are drawn together.
struct Row<'a> {
    label: String,
    class: &'a PlanClass,
    /// Parts of one node, or the mean over the nodes.
    parts: Vec<Part<'a>>,
    /// True for nodes without replicas.
    idle: bool,
}

struct Part<'a> {
    model: &'a str,
    memory: f64,
    busy_percent: f64,
}

/// Returns the drawing, or `None` without node classes.
pub(super) fn map(verdict: &PlanVerdict, colors: &Colors<'_>) -> Option<Markup> {
    let rows = rows(verdict, colors);
    if rows.is_empty() {
        return None;
    }
    let height = TOP + ROW * rows.len() as f64 + 22.0;
    let mut drawing = Drawing::new(WIDTH, height);
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let x = LEFT + BAR * percent / 100.0;
        drawing.line("grid", (x, TOP - 6.0), (x, height - 18.0));
        drawing.text(
            "soft",
            (x, height - 4.0),
            Anchor::Middle,
            &format!("{percent:.0} %"),
        );
    }
    let limit = LEFT + BAR * verdict.headroom.busy_limit_percent / 100.0;
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        draw(&mut drawing, row, y, colors);
        drawing.line("limit", (limit, y + 23.0), (limit, y + 35.0));
    }
    drawing.text(
        "soft",
        (LEFT, 12.0),
        Anchor::Start,
        "memory (thick), chip time (thin; red: maximum allowed)",
    );
    Some(drawing.finish("Placement map: memory and chip time of each kind of node, by model"))
}

fn draw(drawing: &mut Drawing, row: &Row<'_>, y: f64, colors: &Colors<'_>) {
    let limit = row.class.memory_limit_bytes.max(1) as f64;
    let label_class = if row.idle { "soft" } else { "" };
    drawing.text(
        label_class,
        (LEFT - 10.0, y + 15.0),
        Anchor::End,
        &clipped(&row.label, 28),
    );
    drawing.rect("empty", (LEFT, y, BAR, 21.0), "free memory");
    drawing.rect("empty", (LEFT, y + 25.0, BAR, 8.0), "free chip time");
    let (mut memory_x, mut busy_x, mut used) = (LEFT, LEFT, 0.0);
    for part in &row.parts {
        let class = colors.of(part.model);
        let width = (BAR * part.memory / limit).min(LEFT + BAR - memory_x);
        let busy = (BAR * part.busy_percent / 100.0).min(LEFT + BAR - busy_x);
        let tooltip = format!(
            "{}: {} ({:.0} %), {:.0} % of the chip time",
            part.model,
            Bytes(part.memory as u64),
            100.0 * part.memory / limit,
            part.busy_percent
        );
        drawing.rect(class, (memory_x, y, width, 21.0), &tooltip);
        drawing.rect(class, (busy_x, y + 25.0, busy, 8.0), &tooltip);
        // A letter is about 6.5 units wide.
        let letters = ((width - 10.0) / 6.5).max(0.0) as usize;
        if letters >= part.model.chars().count().min(6) {
            drawing.text(
                "in",
                (memory_x + 6.0, y + 14.5),
                Anchor::Start,
                &clipped(part.model, letters),
            );
        }
        memory_x += width;
        busy_x += busy;
        used += part.memory;
    }
    let figures = if row.idle {
        format!("idle, {} free", Bytes(row.class.memory_limit_bytes))
    } else {
        format!(
            "{} of {}",
            Bytes(used as u64),
            Bytes(row.class.memory_limit_bytes)
        )
    };
    drawing.text("soft", (LEFT + BAR + 12.0, y + 15.0), Anchor::Start, &figures);
    if !row.idle {
        let busy: f64 = row.parts.iter().map(|part| part.busy_percent).sum();
        let text = format!("{} % busy", number(busy));
        drawing.text("soft", (LEFT + BAR + 12.0, y + 33.0), Anchor::Start, &text);
    }
}

fn rows<'a>(verdict: &'a PlanVerdict, colors: &Colors<'_>) -> Vec<Row<'a>> {
    let idle_classes = verdict
        .classes
        .iter()
        .filter(|class| class.nodes_used < class.nodes);
    if verdict.placements.len() + idle_classes.clone().count() > MAX_ROWS {
        let classes = verdict.classes.iter().filter(|class| class.nodes > 0);
        return classes.map(|class| of_class(verdict, class, colors)).collect();
    }
    let mut rows = Vec::new();
    for class in &verdict.classes {
        for placement in verdict.placements.iter().filter(|one| one.class == class.name) {
            rows.push(Row {
                label: format!("{} × {}", placement.nodes, class.name),
                class,
                parts: parts(
                    &mut placement.replicas.iter().map(|replica| (replica, 1.0)),
                    colors,
                ),
                idle: false,
            });
        }
        let idle = class.nodes - class.nodes_used.min(class.nodes);
        if idle > 0 {
            rows.push(Row {
                label: format!("{idle} × {}", class.name),
                class,
                parts: Vec::new(),
                idle: true,
            });
        }
    }
    rows
}

/// Returns the mean over all nodes of a class.
fn of_class<'a>(verdict: &'a PlanVerdict, class: &'a PlanClass, colors: &Colors<'_>) -> Row<'a> {
    let placements = verdict.placements.iter().filter(|one| one.class == class.name);
    let mut replicas = placements.flat_map(|placement| {
        let share = f64::from(placement.nodes) / f64::from(class.nodes.max(1));
        placement.replicas.iter().map(move |replica| (replica, share))
    });
    let mut parts = parts(&mut replicas, colors);
    let small = parts.partition_point(|part| colors.of(part.model) != OTHERS);
    let others = parts.split_off(small);
    if !others.is_empty() {
        parts.push(Part {
            model: "other models",
            memory: others.iter().map(|part| part.memory).sum(),
            busy_percent: others.iter().map(|part| part.busy_percent).sum(),
        });
    }
    Row {
        label: format!("{} × {} (mean)", class.nodes, class.name),
        class,
        idle: parts.is_empty(),
        parts,
    }
}

/// Returns one part per model, in the order of the legend.
fn parts<'a>(
    replicas: &mut dyn Iterator<Item = (&'a PlanReplica, f64)>,
    colors: &Colors<'_>,
) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::new();
    for (replica, share) in replicas {
        let (memory, busy) = (
            replica.memory_bytes as f64 * share,
            replica.utilization_percent * share,
        );
        match parts.iter_mut().find(|part| part.model == replica.model) {
            Some(part) => {
                part.memory += memory;
                part.busy_percent += busy;
            }
            None => parts.push(Part {
                model: &replica.model,
                memory,
                busy_percent: busy,
            }),
        }
    }
    parts.sort_by(|a, b| (colors.rank(a.model), a.model).cmp(&(colors.rank(b.model), b.model)));
    parts
}
