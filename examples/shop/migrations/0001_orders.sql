CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, total REAL NOT NULL);

INSERT INTO orders (id, customer, total)
WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000)
SELECT n, 'customer ' || (n % 97), n * 1.25 FROM numbers;

-- journal: reverse
DROP TABLE orders;
