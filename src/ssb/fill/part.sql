-- 1000 brands in turn: brand -> category (40 brands each) -> manufacturer (5 categories each), as MFGR#<m><c><b>.
INSERT INTO part
WITH
    ['almond', 'antique', 'aquamarine', 'azure', 'beige', 'bisque', 'black', 'blanched', 'blue', 'blush', 'brown',
     'burlywood', 'burnished', 'chartreuse', 'chiffon', 'chocolate', 'coral', 'cornflower', 'cornsilk', 'cream', 'cyan',
     'dark', 'deep', 'dim', 'dodger', 'drab', 'firebrick', 'floral', 'forest', 'frosted', 'gainsboro', 'ghost',
     'goldenrod', 'green', 'grey', 'honeydew', 'hot', 'indian', 'ivory', 'khaki', 'lace', 'lavender', 'lawn', 'lemon',
     'light', 'lime', 'linen', 'magenta', 'maroon', 'medium', 'metallic', 'midnight', 'mint', 'misty', 'moccasin',
     'navajo', 'navy', 'olive', 'orange', 'orchid', 'pale', 'papaya', 'peach', 'peru', 'pink', 'plum', 'powder', 'puff',
     'purple', 'red', 'rose', 'rosy', 'royal', 'saddle', 'salmon', 'sandy', 'seashell', 'sienna', 'sky', 'slate',
     'smoke', 'snow', 'spring', 'steel', 'tan', 'thistle', 'tomato', 'turquoise', 'violet', 'wheat', 'white',
     'yellow'] AS colors,
    number + 1 AS k,
    cityHash64(k, 'part') AS h,
    k * 397 % 1000 AS brand,
    concat('MFGR#', toString(1 + intDiv(brand, 200))) AS mfgr,
    concat(mfgr, toString(1 + intDiv(brand, 40) % 5)) AS category
SELECT
    k,
    concat(colors[1 + h % 92], ' ', colors[1 + intDiv(h, 92) % 92]),
    mfgr,
    category,
    concat(category, toString(1 + brand % 40)),
    colors[1 + h % 92],
    concat(
        ['STANDARD', 'SMALL', 'MEDIUM', 'LARGE', 'ECONOMY', 'PROMO'][1 + intDiv(h, 8464) % 6], ' ',
        ['ANODIZED', 'BURNISHED', 'PLATED', 'POLISHED', 'BRUSHED'][1 + intDiv(h, 50784) % 5], ' ',
        ['TIN', 'NICKEL', 'BRASS', 'STEEL', 'COPPER'][1 + intDiv(h, 253920) % 5]),
    1 + intDiv(h, 1269600) % 50,
    concat(
        ['SM', 'LG', 'MED', 'JUMBO', 'WRAP'][1 + intDiv(h, 63480000) % 5], ' ',
        ['CASE', 'BOX', 'BAG', 'JAR', 'PKG', 'PACK', 'CAN', 'DRUM'][1 + intDiv(h, 317400000) % 8])
FROM numbers_mt({parts})
