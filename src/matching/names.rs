//! The names that ClickHouse gives to unnamed result columns, as far as they follow from the text.
//!
//! Only for `explain --schema`, where no server can be asked; the proxy always takes the names from the server.

use crate::sql::render::render;
use crate::sql::tree::{Expr, Item};

/// The name of the result column of an item of a SELECT list.
pub fn of_item(item: &Item) -> String {
    item.alias.clone().unwrap_or_else(|| of_expr(&item.expr))
}

fn of_expr(expr: &Expr) -> String {
    match expr {
        // A qualified column goes by its own name.
        Expr::Name(parts) => parts.last().cloned().unwrap_or_default(),
        other => {
            let named = other.map_children(&mut |child| Ok::<_, std::convert::Infallible>(unqualified(child)));
            let text = match named {
                Ok(expr) => render(&expr, &|_, name| name.into(), &|_| "_subquery".into()),
                Err(never) => match never {},
            };
            text.replace("(*)", "()").replace('`', "")
        }
    }
}

fn unqualified(expr: &Expr) -> Expr {
    match expr {
        Expr::Name(parts) => Expr::Name(parts.last().cloned().into_iter().collect()),
        other => match other.map_children(&mut |child| Ok::<_, std::convert::Infallible>(unqualified(child))) {
            Ok(expr) => expr,
            Err(never) => match never {},
        },
    }
}
