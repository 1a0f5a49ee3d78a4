//! Analysis of rules: those that match no text, those that match the empty text, and left
//! recursion.

use super::{EbnfError, Expression, Rule};

/// Removes the parts that match no text. Returns an error if `root` matches none.
pub(super) fn without_dead_ends(mut rules: Vec<Rule>, root: usize) -> Result<Vec<Rule>, EbnfError> {
    let matches = fixpoint(rules.len(), |index, known| {
        matches_text(&rules[index].body, known)
    });
    if !matches[root] {
        return Err(EbnfError::Empty);
    }
    for rule in &mut rules {
        let body = std::mem::replace(&mut rule.body, Expression::empty());
        // Rules that match nothing are no longer used.
        rule.body = possible(body, &matches).unwrap_or(Expression::Choice(Vec::new()));
    }
    Ok(rules)
}

/// Returns true for each rule that matches the empty text.
pub(super) fn nullable_rules(rules: &[Rule]) -> Vec<bool> {
    fixpoint(rules.len(), |index, known| is_nullable(&rules[index].body, known))
}

/// Sets flags until no further flag follows from the others.
fn fixpoint(rules: usize, follows: impl Fn(usize, &[bool]) -> bool) -> Vec<bool> {
    let mut known = vec![false; rules];
    loop {
        let mut has_changed = false;
        for index in 0..rules {
            if !known[index] && follows(index, &known) {
                known[index] = true;
                has_changed = true;
            }
        }
        if !has_changed {
            return known;
        }
    }
}

fn matches_text(expression: &Expression, rules: &[bool]) -> bool {
    match expression {
        Expression::Text(_) => true,
        Expression::Class(class) => !class.ranges().is_empty(),
        Expression::Rule(rule) => rules[*rule],
        Expression::Sequence(parts) => parts.iter().all(|part| matches_text(part, rules)),
        Expression::Choice(branches) => branches.iter().any(|branch| matches_text(branch, rules)),
        Expression::Repeat(part, min, _) => *min == 0 || matches_text(part, rules),
    }
}

/// Returns true if the expression matches the empty text. `rules` has the rules that do so.
pub(super) fn is_nullable(expression: &Expression, rules: &[bool]) -> bool {
    match expression {
        Expression::Text(text) => text.is_empty(),
        Expression::Class(_) => false,
        Expression::Rule(rule) => rules[*rule],
        Expression::Sequence(parts) => parts.iter().all(|part| is_nullable(part, rules)),
        Expression::Choice(branches) => branches.iter().any(|branch| is_nullable(branch, rules)),
        Expression::Repeat(part, min, _) => *min == 0 || is_nullable(part, rules),
    }
}

/// Removes the branches that match no text; `None` if there are no others.
fn possible(expression: Expression, matches: &[bool]) -> Option<Expression> {
    match expression {
        Expression::Text(_) => Some(expression),
        Expression::Class(ref class) => (!class.ranges().is_empty()).then_some(expression),
        Expression::Rule(rule) => matches[rule].then_some(expression),
        Expression::Sequence(parts) => {
            let parts = parts.into_iter().map(|part| possible(part, matches));
            parts.collect::<Option<_>>().map(Expression::Sequence)
        }
        Expression::Choice(branches) => {
            let branches = branches
                .into_iter()
                .filter_map(|branch| possible(branch, matches));
            let branches: Vec<Expression> = branches.collect();
            (!branches.is_empty()).then_some(Expression::Choice(branches))
        }
        Expression::Repeat(part, min, max) => match possible(*part, matches) {
            Some(part) => Some(Expression::Repeat(Box::new(part), min, max)),
            None => (min == 0).then(Expression::empty),
        },
    }
}

/// Replaces direct left recursion by repetition: `a ::= a x | b` becomes `a ::= b x*`. Returns an
/// error for other left recursion.
pub(super) fn without_left_recursion(mut rules: Vec<Rule>) -> Result<Vec<Rule>, EbnfError> {
    for (index, rule) in rules.iter_mut().enumerate() {
        let body = std::mem::replace(&mut rule.body, Expression::empty());
        rule.body = repeated(body, index);
    }
    let nullable = nullable_rules(&rules);
    let mut first: Vec<Vec<usize>> = Vec::with_capacity(rules.len());
    for rule in &rules {
        let mut found = Vec::new();
        first_rules(&rule.body, &nullable, &mut found);
        found.sort_unstable();
        found.dedup();
        first.push(found);
    }
    match in_cycle(&first) {
        None => Ok(rules),
        Some(index) => Err(EbnfError::LeftRecursive(rules.swap_remove(index).name)),
    }
}

fn repeated(body: Expression, own: usize) -> Expression {
    let branches = match body {
        Expression::Choice(branches) => branches,
        Expression::Text(_)
        | Expression::Class(_)
        | Expression::Rule(_)
        | Expression::Sequence(_)
        | Expression::Repeat(..) => vec![body],
    };
    let (mut bases, mut tails) = (Vec::new(), Vec::new());
    for branch in branches {
        match &branch {
            // The branch adds nothing.
            Expression::Rule(rule) if *rule == own => {}
            Expression::Sequence(parts) if parts.first() == Some(&Expression::Rule(own)) => {
                tails.push(Expression::Sequence(parts[1..].to_vec()));
            }
            Expression::Text(_)
            | Expression::Class(_)
            | Expression::Rule(_)
            | Expression::Sequence(_)
            | Expression::Choice(_)
            | Expression::Repeat(..) => bases.push(branch),
        }
    }
    let base = Expression::Choice(bases);
    if tails.is_empty() {
        return base;
    }
    let tails = Expression::Repeat(Box::new(Expression::Choice(tails)), 0, None);
    Expression::Sequence(vec![base, tails])
}

/// Adds the rules that can begin at the first byte of the expression.
fn first_rules(expression: &Expression, nullable: &[bool], found: &mut Vec<usize>) {
    match expression {
        Expression::Text(_) | Expression::Class(_) => {}
        Expression::Rule(rule) => found.push(*rule),
        Expression::Sequence(parts) => {
            for part in parts {
                first_rules(part, nullable, found);
                if !is_nullable(part, nullable) {
                    break;
                }
            }
        }
        Expression::Choice(branches) => {
            for branch in branches {
                first_rules(branch, nullable, found);
            }
        }
        Expression::Repeat(part, ..) => first_rules(part, nullable, found),
    }
}

/// Returns a node of a cycle of the graph, if it has any.
fn in_cycle(edges: &[Vec<usize>]) -> Option<usize> {
    // Removes the nodes from which no cycle can be reached.
    let mut left: Vec<usize> = edges.iter().map(Vec::len).collect();
    let mut sources: Vec<Vec<usize>> = vec![Vec::new(); edges.len()];
    for (from, to) in edges
        .iter()
        .enumerate()
        .flat_map(|(from, all)| all.iter().map(move |to| (from, *to)))
    {
        sources[to].push(from);
    }
    let mut open: Vec<usize> = (0..edges.len()).filter(|node| left[*node] == 0).collect();
    while let Some(node) = open.pop() {
        for source in &sources[node] {
            left[*source] -= 1;
            if left[*source] == 0 {
                open.push(*source);
            }
        }
    }
    // From any other node, as many steps as there are nodes lead into a cycle.
    let mut node = left.iter().position(|count| *count > 0)?;
    for _ in edges {
        node = edges[node].iter().copied().find(|to| left[*to] > 0)?;
    }
    Some(node)
}
