-- The week is the benchmark's own: seven-day stretches from 1 January, not ISO weeks. Days of the week count from Sunday.
INSERT INTO dates
WITH
    toDate('1992-01-01') + number AS d,
    ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October', 'November', 'December'][toMonth(d)] AS month,
    ['Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'][toDayOfWeek(d)] AS weekday
SELECT
    d,
    concat(month, ' ', toString(toDayOfMonth(d)), ', ', toString(toYear(d))),
    weekday,
    month,
    toYear(d),
    toYYYYMM(d),
    concat(substring(month, 1, 3), toString(toYear(d))),
    1 + toDayOfWeek(d) % 7,
    toDayOfMonth(d),
    toDayOfYear(d),
    toMonth(d),
    intDiv(toDayOfYear(d) - 1, 7) + 1,
    multiIf(toMonth(d) IN (11, 12), 'Christmas', toMonth(d) <= 2, 'Winter', toMonth(d) <= 5, 'Spring', toMonth(d) <= 8, 'Summer', 'Fall'),
    toDayOfWeek(d) = 6,
    d = toLastDayOfMonth(d),
    (toMonth(d), toDayOfMonth(d)) IN ((1, 1), (2, 14), (5, 1), (7, 4), (10, 31), (12, 24), (12, 25), (12, 31)),
    toDayOfWeek(d) <= 5
FROM numbers(2557)
