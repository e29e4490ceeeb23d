-- journal: assert no order has a negative total
SELECT NOT EXISTS (SELECT 1 FROM orders WHERE total < 0);

-- journal: schema
ALTER TABLE orders ADD COLUMN total_cents INTEGER;
-- journal: reverse
ALTER TABLE orders DROP COLUMN total_cents;

-- journal: backfill table=orders key=id batch=1000
UPDATE orders SET total_cents = round(total * 100) WHERE id > :after AND id <= :upto;
-- journal: verify
SELECT NOT EXISTS (SELECT 1 FROM orders WHERE id <= :upto AND total_cents IS NULL);
-- journal: reverse
UPDATE orders SET total_cents = NULL WHERE id > :after AND id <= :upto;
