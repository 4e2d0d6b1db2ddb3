//! Answers that Tributary gives itself, in the form in which ClickHouse would: clients show them as they show any
//! exception of the server.

/// An error of our own: status, ClickHouse's number and name for it, and what to say.
#[derive(Debug)]
pub struct OwnError {
    pub status: &'static str,
    pub code: i32,
    pub name: &'static str,
    pub message: String,
}

impl OwnError {
    /// ClickHouse cannot be reached, or went away before it answered.
    pub fn upstream(message: String) -> Self {
        Self { status: "502 Bad Gateway", code: 210, name: "NETWORK_ERROR", message }
    }

    /// `tributary=require`, and the query would have gone to the raw tables.
    pub fn required(reason: &str) -> Self {
        let message = format!("tributary=require, but this query would read the raw tables: {reason}");
        Self { status: "409 Conflict", code: 392, name: "QUERY_IS_PROHIBITED", message }
    }

    /// The whole answer. `decision` is the value of `X-Tributary-Decision`, if the request was a query.
    pub fn render(&self, decision: Option<&str>, keeps_alive: bool) -> Vec<u8> {
        let body = format!("Code: {}. DB::Exception: Tributary: {}. ({})\n", self.code, self.message, self.name);
        let decision = decision.map(decision_line).unwrap_or_default();
        format!(
            "HTTP/1.1 {}\r\n{decision}Connection: {}\r\nContent-Type: text/plain; charset=UTF-8\r\n\
             X-ClickHouse-Exception-Code: {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.status,
            if keeps_alive { "Keep-Alive" } else { "Close" },
            self.code,
            body.len(),
        )
        .into_bytes()
    }
}

/// Longest decision that goes into a header: a reason may quote the query.
const DECISION_BYTES_MAX: usize = 1000;

/// The header line of a decision, with its end. Reasons may hold any text, a header line may not.
pub fn decision_line(decision: &str) -> String {
    let printable = decision.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' });
    format!("X-Tributary-Decision: {}\r\n", printable.take(DECISION_BYTES_MAX).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_cannot_break_out_of_its_header() {
        assert_eq!(decision_line("raw; reason=a\r\nX: é"), "X-Tributary-Decision: raw; reason=a??X: ?\r\n");
        assert!(decision_line(&"x".repeat(5000)).len() < 1100);
    }
}
